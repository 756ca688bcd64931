package fleet

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/local/postgres"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/taskgroup"
)

// Program is one of Hawser's programs in a fleet. It can be stopped, killed, paused and started again; its
// address, files and arguments stay the same. After an unexpected end it is restarted, as kubelet does.
//
// Start, Stop and Kill must not be called concurrently. The other methods may be called at any time.
type Program struct {
	spec childproc.Spec
	// Admin is host:port of its admin endpoints; Mosquitto has none.
	Admin  string
	printf func(format string, args ...any)

	watch *watch // nil before Start and after Stop and Kill

	mu      sync.Mutex // guards the fields below
	process *childproc.Process
	crashes []string
}

// watch is the goroutine that restarts a program, as kubelet does.
type watch struct {
	cut  context.CancelFunc
	done chan struct{}
}

// restartAfter is the delay before an ended program is restarted.
const restartAfter = time.Second

// Start starts the program and waits until it is ready. It does nothing if the program runs.
func (p *Program) Start(ctx context.Context) error { return p.start(ctx, p.spec) }

// Launch starts the program without waiting, for a program that cannot become ready.
func (p *Program) Launch(ctx context.Context) error { return p.start(ctx, p.unready()) }

// unready returns the spec without the wait for readiness: kubelet does not wait either.
func (p *Program) unready() childproc.Spec {
	s := p.spec
	s.Ready = nil
	return s
}

func (p *Program) start(ctx context.Context, s childproc.Spec) error {
	if p.watch != nil {
		return nil
	}
	process, err := childproc.Start(ctx, s)
	if err != nil {
		return err
	}
	p.set(process)
	lifetime, cut := context.WithCancel(context.WithoutCancel(ctx))
	p.watch = &watch{cut: cut, done: make(chan struct{})}
	go p.keep(lifetime, p.watch.done, process)
	return nil
}

// keep restarts the program whenever it ends, until ctx ends.
func (p *Program) keep(ctx context.Context, done chan<- struct{}, process *childproc.Process) {
	defer close(done)
	for {
		select {
		case <-process.Done():
		case <-ctx.Done():
			return
		}
		p.note(process.LogTail())
		p.printf("%s ended by itself and is started again, see %s", p.spec.Name, p.spec.LogFile)
		for next := (*childproc.Process)(nil); next == nil; {
			if !taskgroup.Sleep(ctx, restartAfter) {
				return
			}
			var err error
			if next, err = childproc.Start(ctx, p.unready()); err != nil {
				p.note(err.Error())
				continue
			}
			process = next
			p.set(process)
		}
	}
}

func (p *Program) set(process *childproc.Process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.process = process
}

func (p *Program) note(crash string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.crashes = append(p.crashes, crash)
}

// Crashes returns, for each unexpected end of the program, the end of its log at that moment.
func (p *Program) Crashes() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.crashes)
}

// current returns the running process, nil if there is none.
func (p *Program) current() *childproc.Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process == nil {
		return nil
	}
	select {
	case <-p.process.Done():
		return nil
	default:
		return p.process
	}
}

// Running reports whether the process exists.
func (p *Program) Running() bool { return p.current() != nil }

// disown ends the watch and returns the last process, or nil if the program was stopped.
func (p *Program) disown() *childproc.Process {
	if p.watch == nil {
		return nil
	}
	p.watch.cut()
	<-p.watch.done
	p.watch = nil
	p.mu.Lock()
	defer p.mu.Unlock()
	process := p.process
	p.process = nil
	return process
}

// Stop stops the program cleanly. It does nothing if the program does not run.
func (p *Program) Stop() error {
	if process := p.disown(); process != nil {
		return process.Stop()
	}
	return nil
}

// Kill ends the program with SIGKILL. It does nothing if the program does not run.
func (p *Program) Kill() {
	if process := p.disown(); process != nil {
		process.Kill()
	}
}

// Pause suspends the process (SIGSTOP), like a machine that hangs; Resume continues it. A paused program must
// be resumed before Stop.
func (p *Program) Pause() error { return p.signal(syscall.SIGSTOP) }

// Resume continues a paused process (SIGCONT).
func (p *Program) Resume() error { return p.signal(syscall.SIGCONT) }

func (p *Program) signal(s syscall.Signal) error {
	process := p.current()
	if process == nil {
		return fmt.Errorf("%s does not run", p.spec.Name)
	}
	return process.Signal(s)
}

// PID returns the id of the running process, 0 if it does not run.
func (p *Program) PID() int {
	process := p.current()
	if process == nil {
		return 0
	}
	return process.PID()
}

// LogFile is the log file of the program.
func (p *Program) LogFile() string { return p.spec.LogFile }

// Args returns the arguments of the program.
func (p *Program) Args() []string { return p.spec.Args }

// SetArgs changes the arguments, from the next start on.
func (p *Program) SetArgs(args []string) { p.spec.Args = args }

// Ready returns a check that queries a readiness endpoint, as kubelet does.
func Ready(url string) func(context.Context) error {
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

// folder returns the directory of deploy/ for a program.
func (f *Fleet) folder(base string) string {
	if base == Broker && f.cfg.Brokers > 1 {
		base = "broker-postgres"
	}
	return f.deploy(base)
}

// newProgram renders the base of a program in deploy/ and makes the program of its Deployment.
func (f *Fleet) newProgram(ctx context.Context, name, base string, kubeconfig string) (*Program, error) {
	r, err := render(ctx, f.Kubectl(), f.folder(base))
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
		broker: f.brokerAddrs(),
		secret: func(secret string) (map[string][]byte, error) { return f.secretFiles(name, secret) },
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	args, env := slices.Concat(cmd.args, f.transportArgs(base), f.cfg.Args[base]), cmd.env
	switch {
	case kubeconfig == "":
	case base == Agent: // as an agent outside of its managed cluster
		args = append(args, "--spoke-kubeconfig="+kubeconfig)
	default:
		env = append(env, "KUBECONFIG="+kubeconfig)
	}
	admin := net.JoinHostPort(f.ip(owner), strconv.Itoa(cmd.readyPort))
	return &Program{
		Admin: admin, printf: f.cfg.Printf,
		spec: childproc.Spec{
			Name: name, Path: filepath.Join(f.cfg.Bin, "hawser-"+base), Args: args, Env: env,
			LogFile: filepath.Join(f.LogDir(), name+".log"),
			// All checks of /readyz, also those that the probe excludes: the whole fleet must work.
			Ready: Ready("http://" + admin + strings.Split(cmd.readyPath, "?")[0]),
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

// Volume is the directory of the program's volume of that name in its Deployment, such as the broker's "data".
func (f *Fleet) Volume(program, volume string) string {
	return filepath.Join(f.cfg.Dir, program, volume)
}

// webhookSecret is the name in deploy/ of the Secret with the webhook's certificate.
const webhookSecret = "hawser-hub-source-webhook-tls"

// databaseSecret is the name in deploy/ of the Secret with the database of several brokers.
const databaseSecret = "hawser-broker-postgres"

// secretFiles returns the files that an operator puts into a program's Secret. These are certificate, key and
// CA. An agent also gets the driver file and the cluster name.
func (f *Fleet) secretFiles(name, secret string) (map[string][]byte, error) {
	if secret == databaseSecret {
		db := f.database
		url := postgres.URL(db.Addr(), postgres.Superuser, "", postgres.Superuser)
		return map[string][]byte{"url": []byte(url), "password": []byte(db.Password())}, nil
	}
	dir := f.PKI()
	role, holder := certificateOf(name)
	if secret == webhookSecret {
		role, holder = pki.Webhook, SourceID
	}
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
		files["hub-identity"] = []byte(f.BrokerAddr())
		files["config.yaml"] = f.ConnectionFile(role, holder)
	}
	if name == HubSource && f.cfg.overMQTT() {
		files[hubSourceConfig] = f.ConnectionFile(role, holder)
	}
	return files, nil
}
