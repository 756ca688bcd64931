package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/hawser-io/hawser/internal/install"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// exampleCluster stands for the name and the context of a cluster in commands that are printed.
const exampleCluster = "cluster1"

// accessDir is where hawser install hub writes the operator's access.
const accessDir = "hawser-access"

// steps are the commands with which a cluster comes to a hub, complete as they are printed.
type steps struct {
	env Env
	// kubeconfig is the flag's value, hub a context of it.
	kubeconfig, hub string
	// cluster is the name of the cluster, context leads to it.
	cluster, context string
	install.Join
	// caFile has the authority of the broker, in tokenFile is the token; - means that a pipe brings it.
	caFile, tokenFile string
}

// steps returns those of a hub for the cluster of the examples.
func (c *connection) steps(env Env, hubContext string) steps {
	return steps{env: env, kubeconfig: c.kubeconfig, hub: c.contextNamed(hubContext), cluster: exampleCluster, context: exampleCluster, tokenFile: "token"}
}

// contextNamed returns the name of a context, the current one if name is empty.
func (c *connection) contextNamed(name string) string {
	if name != "" {
		return name
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.kubeconfig
	if raw, err := rules.Load(); err == nil {
		return raw.CurrentContext
	}
	return ""
}

// command is one of hawser, with its flags as pairs of name and value. What is empty is left out.
func (s *steps) command(words string, flags ...string) string {
	var b strings.Builder
	b.WriteString(s.env.name() + " " + words)
	for i := 0; i+1 < len(flags); i += 2 {
		if flags[i+1] != "" {
			b.WriteString(" " + flags[i] + " " + quoted(flags[i+1]))
		}
	}
	return b.String()
}

// makeToken makes a token of the hub and writes it.
func (s *steps) makeToken() string {
	create := s.command("token create", "--context", s.hub, "--kubeconfig", s.kubeconfig)
	if s.tokenFile == "-" {
		return create + " | "
	}
	return create + " > " + quoted(s.tokenFile) + " && "
}

// join has the cluster ask to join. The authority is named by its file, where a file has it.
func (s *steps) join() string {
	data := ""
	if s.caFile == "" {
		data = base64.StdEncoding.EncodeToString(s.CA)
	}
	return s.command("join "+s.cluster, "--context", s.context, "--kubeconfig", s.kubeconfig, "--token-file", s.tokenFile, "--broker", s.Broker,
		"--broker-ca", s.caFile, "--broker-ca-data", data, "--image-registry", s.Images.Registry, "--image-version", s.Images.Version)
}

// accept lets the cluster in.
func (s *steps) accept() string {
	return s.command("accept "+s.cluster, "--context", s.hub, "--kubeconfig", s.kubeconfig) + " --wait"
}

// installCluster puts the agent on the cluster, on a hub that clusters do not join.
func (s *steps) installCluster() string {
	return s.command("install cluster "+s.cluster, "--hub-context", s.hub, "--context", s.context, "--kubeconfig", s.kubeconfig)
}

// atHub fills in what clusters need to join a hub. known is false where hawser install has not put it there.
func (s *steps) atHub(ctx context.Context, hub kubeclient.Client) (known bool, err error) {
	s.Join, known, err = install.Joining(ctx, hub)
	file := filepath.Join(accessDir, "ca.crt")
	if have, failed := os.ReadFile(file); failed == nil && bytes.Equal(have, s.CA) {
		s.caFile = file
	}
	return known, err
}

// example says that the cluster of a command is one.
const example = exampleCluster + " stands for the name and the context of your cluster"

// clusterLines says how a cluster comes to a hub whose access is in a directory.
func (f *installFlags) clusterLines(env Env, set install.Settings, dir string) string {
	s := f.steps(env, f.context)
	if set.Registration != install.On {
		return "a cluster:        " + s.installCluster() + "\n" + example + "\n"
	}
	s.Join = install.Join{Bootstrap: install.Bootstrap{Broker: set.Address}, Images: set.Images}
	s.caFile, s.tokenFile = filepath.Join(dir, "ca.crt"), filepath.Join(dir, "token")
	return "a cluster:        " + s.makeToken() + s.join() + "\nlet it in:        " + s.accept() + "\n" + example + "\n"
}

// admits returns an error where the agent that an installation puts on a cluster would be refused:
// with the commands by which the cluster joins.
func (f *installFlags) admits(ctx context.Context, env Env, b both, name, hubContext string) error {
	why, err := install.Managed{Name: name, Hub: b.hub, Client: b.cluster}.Refused(ctx)
	if err != nil || why == "" {
		return err
	}
	s := f.steps(env, hubContext)
	s.cluster, s.context = name, f.context
	if _, err := s.atHub(ctx, b.hub); err != nil {
		return err
	}
	s.Images.Registry = cmp.Or(f.images.Registry, s.Images.Registry)
	s.Images.Version = cmp.Or(f.images.Version, s.Images.Version)
	return hint(errors.New(why), "have it join:\n  %s%s\n  %s", s.makeToken(), s.join(), s.accept())
}

// afterToken says what a token that was printed is for. The person may see less of the hub than
// the line needs: the token is good all the same.
func (c *connection) afterToken(ctx context.Context, env Env) string {
	s := c.steps(env, c.context)
	s.tokenFile = fileOf(env.Stdout)
	hub, err := c.dial(c.context)
	known := false
	if err == nil {
		known, err = s.atHub(ctx, hub)
	}
	switch {
	case err != nil:
		return fmt.Sprintf("how clusters reach this hub can not be read (%v); see %s join --help\n", err, env.name())
	case !known:
		return fmt.Sprintf("%s install has not put a hub with --registration here; see %[1]s join --help for the broker, its CA and the images\n", env.name())
	}
	create := ""
	if s.tokenFile == "-" {
		create = s.makeToken()
	}
	return "a cluster:  " + create + s.join() + "\nlet it in:  " + s.accept() + "\n" + example + "\n"
}

// fileOf is the file that a person redirected the output to; - where it is none.
func fileOf(out io.Writer) string {
	if p, is := out.(telemetry.PrintableWriter); is {
		out = p.W
	}
	f, ok := out.(*os.File)
	if !ok {
		return "-"
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "-"
	}
	if runtime.GOOS == "linux" {
		if path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd())); err == nil {
			return path
		}
	}
	return "token"
}

// quoted is a word as a shell takes it.
func quoted(name string) string {
	safe := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:=@,+%", r)
	}
	if name != "" && strings.IndexFunc(name, func(r rune) bool { return !safe(r) }) < 0 {
		return name
	}
	return "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
}
