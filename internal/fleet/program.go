package fleet

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/proc"
)

// Program is one of Hawser's programs in a fleet. It can be stopped, killed and
// started again; its address, files and arguments stay the same. Methods must
// not be called concurrently.
type Program struct {
	spec proc.Spec
	// Admin is host:port of its admin endpoints.
	Admin   string
	process *proc.Process
}

// Start starts the program and waits until it is ready; it does nothing when
// the program runs.
func (p *Program) Start(ctx context.Context) error {
	if p.Running() {
		return nil
	}
	process, err := proc.Start(ctx, p.spec)
	if err != nil {
		return err
	}
	p.process = process
	return nil
}

// Running reports whether the process exists.
func (p *Program) Running() bool {
	if p.process == nil {
		return false
	}
	select {
	case <-p.process.Done():
		return false
	default:
		return true
	}
}

// Stop ends the program in an orderly way; it does nothing when it does not
// run.
func (p *Program) Stop() error {
	if p.process == nil {
		return nil
	}
	err := p.process.Stop()
	p.process = nil
	return err
}

// Kill ends the program with SIGKILL; it does nothing when it does not run.
func (p *Program) Kill() {
	if p.process != nil {
		p.process.Kill()
		p.process = nil
	}
}

// PID returns the id of the running process, 0 when it does not run.
func (p *Program) PID() int {
	if !p.Running() {
		return 0
	}
	return p.process.PID()
}

// LogFile is where the program writes.
func (p *Program) LogFile() string { return p.spec.LogFile }

// Args are the arguments the program is started with.
func (p *Program) Args() []string { return p.spec.Args }

// ready asks the readiness endpoint as kubelet would.
func ready(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", url, resp.Status)
		}
		return nil
	}
}

// newProgram renders deploy/<base> and makes the program that its Deployment
// describes.
func (f *Fleet) newProgram(ctx context.Context, name, base string, kubeconfig string) (*Program, error) {
	r, err := render(ctx, f.Kubectl(), filepath.Join(f.cfg.Root, "deploy", base))
	if err != nil {
		return nil, err
	}
	owner := name
	if c, ok := f.clusterOf(name); ok {
		owner = c
	}
	cmd, err := r.prepare(pod{
		dir:    filepath.Join(f.cfg.Dir, name),
		ip:     f.ip(owner),
		broker: f.BrokerAddr(),
		secret: func(string) (map[string][]byte, error) { return f.secretFiles(name) },
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	env := cmd.env
	if kubeconfig != "" {
		env = append(env, "KUBECONFIG="+kubeconfig)
	}
	admin := net.JoinHostPort(f.ip(owner), strconv.Itoa(cmd.readyPort))
	return &Program{
		Admin: admin,
		spec: proc.Spec{
			Name: name, Path: filepath.Join(f.cfg.Bin, "hawser-"+base), Args: cmd.args, Env: env,
			LogFile: filepath.Join(f.LogDir(), name+".log"),
			Ready:   ready("http://" + admin + cmd.readyPath),
		},
	}, nil
}

func (f *Fleet) clusterOf(program string) (string, bool) {
	for _, c := range f.cfg.Clusters {
		if AgentOf(c) == program {
			return c, true
		}
	}
	return "", false
}

// BrokerAddr is host:port of the broker's gRPC port.
func (f *Fleet) BrokerAddr() string { return net.JoinHostPort(f.ip(Broker), "8090") }

// secretFiles are what an operator puts into the Secret of a program: its
// certificate, key and CA, and an agent's driver file and name of its cluster.
func (f *Fleet) secretFiles(name string) (map[string][]byte, error) {
	dir := f.PKI()
	role, holder := certificateOf(name)
	if c, ok := f.clusterOf(name); ok {
		role, holder = pki.Agent, c
	}
	files := map[string][]byte{}
	for file, path := range map[string]string{"ca.crt": dir.CACert(), "tls.crt": dir.Cert(role, holder), "tls.key": dir.Key(role, holder)} {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		files[file] = b
	}
	if role == pki.Agent {
		files["cluster-name"] = []byte(holder)
		files["config.yaml"] = fmt.Appendf(nil, "url: %s\ncaFile: %s\nclientCertFile: %s\nclientKeyFile: %s\n",
			f.BrokerAddr(), dir.CACert(), dir.Cert(role, holder), dir.Key(role, holder))
	}
	return files, nil
}
