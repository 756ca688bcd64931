package troubleshooting

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// look is a command of an operator, with its expected output.
type look struct {
	command string
	// output is a regular expression for the line with the cause.
	output string
	// next is a regular expression for the line with the operator's next step.
	next string
	// past: the line is about the past, and stays after the repair.
	past bool
}

// operator is an operator at the hub with kubectl and hawser.
type operator struct {
	*harness.Fleet
	t    *testing.T
	home string
	env  []string
	// renamed are pairs: a name of this run, and its name on the page.
	renamed []string
	version string
}

// sit returns an operator for a test.
func sit(t *testing.T) *operator {
	t.Helper()
	f := shared
	o := &operator{Fleet: f, t: t, home: t.TempDir()}
	o.env = append(os.Environ(),
		"PATH="+filepath.Dir(f.Kubectl())+":"+filepath.Join(f.Root, "bin")+":"+os.Getenv("PATH"),
		"KUBECONFIG="+f.Hub.KubeconfigPath, "HOME="+o.home, "XDG_CONFIG_HOME=", "HTTPS_PROXY=", "https_proxy=",
	)
	ip, _, err := net.SplitHostPort(f.BrokerAddr())
	if err != nil {
		t.Fatal(err)
	}
	webhook, _, err := net.SplitHostPort(f.Program("hub-source").Admin)
	if err != nil {
		t.Fatal(err)
	}
	version, err := childproc.Run(t.Context(), filepath.Join(f.Root, "bin", "hawser"), "version")
	if err != nil {
		t.Fatal(err)
	}
	o.version = strings.Fields(string(version))[1]
	o.renamed = []string{string(f.PKI()) + "/", "certs/", o.home + "/", "",
		"https://" + webhook + ":9443/", "https://hawser-hub-source.hawser.svc:443/", webhook, "10.0.0.7",
		f.BrokerAddr(), "broker.example:8090", ip, "192.0.2.10"}
	o.trust(f.BrokerAddr(), "", pki.Operator, "operator")
	o.forget(cluster)
	t.Cleanup(o.leave)
	return o
}

// forget deletes the Events of earlier tests, whose works had the same names.
func (o *operator) forget(namespace string) {
	o.t.Helper()
	if err := o.HubAPI.Kube.CoreV1().Events(namespace).DeleteCollection(o.t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		o.t.Fatal(err)
	}
}

// leave waits until all works of the test are gone.
func (o *operator) leave() {
	left := ""
	err := wait.PollUntilContextTimeout(context.Background(), 50*time.Millisecond, harness.ConvergeTimeout, true, func(ctx context.Context) (bool, error) {
		works, err := o.HubAPI.Work.WorkV1().ManifestWorks("").List(ctx, metav1.ListOptions{})
		left = fmt.Sprint(err)
		if err == nil {
			left = ""
			for _, w := range works.Items {
				if !disconnected[w.Namespace] {
					left += w.Namespace + "/" + w.Name + " "
				}
			}
		}
		return left == "", nil
	})
	if err != nil {
		o.t.Errorf("the works do not go: %s", left)
	}
}

// trust writes hawser's configuration file, with the broker's address and the operator's certificate.
func (o *operator) trust(broker, serverName string, role pki.Role, name string) {
	o.t.Helper()
	dir := o.PKI()
	o.write(".config/hawser/config.yaml", fmt.Sprintf("currentContext: prod\ncontexts:\n  prod: {broker: %q, serverName: %q, ca: %s, cert: %s, key: %s}\n",
		broker, serverName, dir.CACert(), dir.Cert(role, name), dir.Key(role, name)))
}

// write writes a file in the home directory of the operator.
func (o *operator) write(name, text string) {
	o.t.Helper()
	path := filepath.Join(o.home, name)
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err := errors.Join(err, os.WriteFile(path, []byte(text), 0o600)); err != nil {
		o.t.Fatal(err)
	}
}

// types runs a command and returns its screen. A command that fails is no error: many of these commands fail,
// and print the cause.
func (o *operator) types(ctx context.Context, command string) (string, error) {
	argv := strings.Fields(command)
	for _, dir := range []string{filepath.Dir(o.Kubectl()), filepath.Join(o.Root, "bin")} {
		if path := filepath.Join(dir, argv[0]); exists(path) {
			cmd := exec.CommandContext(ctx, path, argv[1:]...)
			cmd.Dir, cmd.Env = o.home, o.env
			out, err := cmd.CombinedOutput()
			if e := new(exec.ExitError); errors.As(err, &e) {
				err = ctx.Err()
			}
			return normalize(strings.NewReplacer(o.renamed...).Replace(string(out)), o.version), err
		}
	}
	return "", fmt.Errorf("%s: there is no program %s", command, argv[0])
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// sees waits until the screen of the commands equals that in docs/troubleshooting.md for the fault.
func (o *operator) sees(fault string, looks ...look) {
	o.t.Helper()
	page := page{filepath.Join(o.Root, "docs", "troubleshooting.md"), fault}
	update, printed := os.Getenv("UPDATE") != "", ""
	if !update {
		var err error
		if printed, err = page.read(); err != nil {
			o.t.Fatal(err)
		}
	}
	last := ""
	harness.Eventually(o.t, func(ctx context.Context) error {
		screen, err := o.screen(ctx, looks)
		if err != nil {
			return err
		}
		same := screen == printed
		if update { // a screen that still changes is not written
			same = screen == last
			last = screen
		}
		if !same {
			return errors.New("docs/troubleshooting.md prints something else (UPDATE=1 prints this): " + cmp.Diff(printed, screen))
		}
		return nil
	})
	if update {
		if err := page.write(last); err != nil {
			o.t.Fatal(err)
		}
	}
}

// screen returns the output of the commands. It returns an error unless each output has the cause and the next
// step.
func (o *operator) screen(ctx context.Context, looks []look) (screen string, err error) {
	for _, l := range looks {
		out, failed := o.types(ctx, l.command)
		if failed != nil {
			return "", failed
		}
		for _, want := range []string{l.output, l.next} {
			if !regexp.MustCompile(want).MatchString(out) {
				err = errors.Join(err, fmt.Errorf("%s does not print %q:\n%s", l.command, want, shortened(out)))
			}
		}
		screen += "$ " + l.command + "\n" + shortened(out)
	}
	return screen, err
}

// shortened returns a long table without most of its rows, and with their number.
func shortened(out string) string {
	const most, begin = 20, 3
	lines := strings.SplitAfter(out, "\n")
	if len(lines) <= most {
		return out
	}
	return strings.Join(lines[:begin], "") + fmt.Sprintf("… (%d more lines)\n", len(lines)-1-begin)
}

// isWell waits until no command prints its cause.
func (o *operator) isWell(looks ...look) {
	o.t.Helper()
	harness.Eventually(o.t, func(ctx context.Context) error {
		for _, l := range looks {
			out, err := o.types(ctx, l.command)
			if err == nil && !l.past && regexp.MustCompile(l.output).MatchString(out) {
				err = fmt.Errorf("%s still prints %q:\n%s", l.command, l.output, out)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// passes waits until a command prints a text.
func (o *operator) passes(command, reported string) {
	o.t.Helper()
	harness.Eventually(o.t, func(ctx context.Context) error {
		_, err := o.screen(ctx, []look{{command: command, output: reported}})
		return err
	})
}
