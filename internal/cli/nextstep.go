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

// exampleCluster is the example name and context of a cluster in printed commands.
const exampleCluster = "cluster1"

// accessDir is the default directory of the operator's access that hawser install hub writes.
const accessDir = "hawser-access"

// steps holds the values of the printed commands with which a cluster joins a hub.
type steps struct {
	env Env
	// kubeconfig is the flag's value, hub a context of it.
	kubeconfig, hub string
	// cluster is the name of the cluster, context its kubeconfig context.
	cluster, context string
	install.Join
	// caFile has the CA of the broker, tokenFile the token; - means standard input.
	caFile, tokenFile string
}

// steps returns the steps for the example cluster and this hub.
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

// command returns a hawser command, with its flags as pairs of name and value. Empty values are omitted.
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

// makeToken returns the command that makes a token of the hub and writes it to a file.
func (s *steps) makeToken() string {
	create := s.command("token create", "--context", s.hub, "--kubeconfig", s.kubeconfig)
	if s.tokenFile == "-" {
		return create + " | "
	}
	return create + " > " + quoted(s.tokenFile) + " && "
}

// join returns the command with which the cluster requests to join. The CA is given by file, if there is one.
func (s *steps) join() string {
	data := ""
	if s.caFile == "" {
		data = base64.StdEncoding.EncodeToString(s.CA)
	}
	return s.command("join "+s.cluster, "--context", s.context, "--kubeconfig", s.kubeconfig, "--token-file", s.tokenFile, "--broker", s.Broker,
		"--broker-ca", s.caFile, "--broker-ca-data", data, "--image-registry", s.Images.Registry, "--image-version", s.Images.Version)
}

// accept returns the command that accepts the cluster.
func (s *steps) accept() string {
	return s.command("accept "+s.cluster, "--context", s.hub, "--kubeconfig", s.kubeconfig) + " --wait"
}

// installCluster returns the command that installs the agent on the cluster, for a hub without registration.
func (s *steps) installCluster() string {
	return s.command("install cluster "+s.cluster, "--hub-context", s.hub, "--context", s.context, "--kubeconfig", s.kubeconfig)
}

// atHub fills in the values that clusters need to join a hub. known is false if hawser install has not stored
// them there.
func (s *steps) atHub(ctx context.Context, hub kubeclient.Client) (known bool, err error) {
	s.Join, known, err = install.Joining(ctx, hub)
	file := filepath.Join(accessDir, "ca.crt")
	if have, failed := os.ReadFile(file); failed == nil && bytes.Equal(have, s.CA) {
		s.caFile = file
	}
	return known, err
}

// example explains that the cluster of a command is an example.
const example = exampleCluster + " stands for the name and the context of your cluster"

// clusterLines returns the text that explains how a cluster joins a hub whose access is in a directory.
func (f *installFlags) clusterLines(env Env, set install.Settings, dir string) string {
	s := f.steps(env, f.context)
	if set.Registration != install.On {
		return "a cluster:        " + s.installCluster() + "\n" + example + "\n"
	}
	s.Join = install.Join{Bootstrap: install.Bootstrap{Broker: set.Address}, Images: set.Images}
	s.caFile, s.tokenFile = filepath.Join(dir, "ca.crt"), filepath.Join(dir, "token")
	return "a cluster:        " + s.makeToken() + s.join() + "\naccept it:        " + s.accept() + "\n" + example + "\n"
}

// admits returns an error if the broker would refuse the agent of an installation. The error contains the
// commands with which the cluster joins.
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

// afterToken returns the text that explains a printed token. The user may lack rights to read all values; the
// token is valid anyway.
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
		return fmt.Sprintf("%s install has not installed a hub with --registration here; see %[1]s join --help for the broker, its CA and the images\n", env.name())
	}
	create := ""
	if s.tokenFile == "-" {
		create = s.makeToken()
	}
	return "a cluster:  " + create + s.join() + "\naccept it:  " + s.accept() + "\n" + example + "\n"
}

// fileOf returns the file that the output is redirected to, or - if it is not redirected.
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

// quoted returns a word quoted for a shell.
func quoted(name string) string {
	safe := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:=@,+%", r)
	}
	if name != "" && strings.IndexFunc(name, func(r rune) bool { return !safe(r) }) < 0 {
		return name
	}
	return "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
}
