// Package demo runs `hawser demo` as a user would: twice, killed in the middle, and with its port in use.
package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/local/fleet"
)

const (
	// subnet differs from the subnet of the demo, so that the test does not disturb a running demo.
	subnet = 76
	within = 3 * time.Minute
)

// demo is a command line of hawser demo.
type demo struct {
	root, dir string
}

func newDemo(t *testing.T) demo {
	t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "bin", "hawser")); err != nil {
		t.Fatalf("the programs are not built, run the tests with make e2e: %v", err)
	}
	return demo{root: root, dir: filepath.Join(t.TempDir(), "demo")}
}

func (d demo) args(more ...string) []string {
	return append([]string{"demo", "--root", d.root, "--dir", d.dir, "--subnet", strconv.Itoa(subnet), "--transport", transport()}, more...)
}

// run runs the demo until it ends.
func (d demo) run(t *testing.T, more ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(d.root, "bin", "hawser"), d.args(more...)...).CombinedOutput()
	return string(out), err
}

// start starts the demo, and waits for the message that everything runs.
func (d demo) start(t *testing.T) *childproc.Process {
	t.Helper()
	log := filepath.Join(t.TempDir(), "demo.log")
	p, err := childproc.Start(t.Context(), childproc.Spec{
		Name: "demo", Path: filepath.Join(d.root, "bin", "hawser"), Args: d.args(), LogFile: log,
		ReadyWithin: within,
		Ready: func(context.Context) error {
			b, err := os.ReadFile(log)
			if err == nil && !strings.Contains(string(b), "Ctrl-C stops it all") {
				err = errors.New("the demo does not report that everything runs")
			}
			return err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

func TestDemo_SecondRunAndKill(t *testing.T) {
	d := newDemo(t)
	first := d.start(t)
	out, err := d.run(t)
	if err == nil || !strings.Contains(out, "already runs") || !strings.Contains(out, "hint: ") {
		t.Fatalf("a second demo beside the first: %v\n%s", err, out)
	}

	// A killed demo leaves no process behind, and the next demo starts without its state.
	first.Kill()
	brokerGone(t)
	out, err = d.run(t, "--once")
	if err != nil {
		t.Fatalf("after SIGKILL: %v\n%s", err, out)
	}
	for _, want := range []string{"Applied=True AppliedManifestWorkComplete", "Available=True ResourcesAvailable", "-first-work", "deployment.apps/first-work"} {
		if !strings.Contains(out, want) {
			t.Errorf("the tour does not show %q:\n%s", want, out)
		}
	}
	if page, tour := d.worksIn(t, "README.md"), worksShown(out); !slices.Equal(page, tour) {
		t.Errorf("README.md shows %q, the tour %q", page, tour)
	}
	brokerGone(t)
}

// worksShown returns the rows of the table of works in a text, without times.
func worksShown(text string) (rows []string) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 6 && (f[0] == "NAMESPACE" || len(rows) > 0) {
			rows = append(rows, strings.Join(f[:len(f)-2], " "))
		} else if len(rows) > 0 {
			break
		}
	}
	return rows
}

func (d demo) worksIn(t *testing.T, page string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(d.root, page))
	if err != nil {
		t.Fatal(err)
	}
	rows := worksShown(string(b))
	if len(rows) < 2 {
		t.Fatalf("%s shows no works", page)
	}
	return rows
}

func TestDemo_InterruptEndsItInOrder(t *testing.T) {
	p := newDemo(t).start(t)
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	if tail := p.LogTail(); !strings.Contains(tail, "stopping everything") {
		t.Errorf("%s", tail)
	}
	brokerGone(t)
}

// TestDemo_SeveralBrokers: the tour kills each broker, and the work goes on. Mosquitto runs alone.
func TestDemo_SeveralBrokers(t *testing.T) {
	out, err := newDemo(t).run(t, "--once", "--brokers", "3")
	if transport() == string(fleet.Mosquitto) {
		if err == nil || !strings.Contains(out, "3 brokers: a demo has 1 to") || !strings.Contains(out, "hint: ") {
			t.Errorf("three times Mosquitto: %v\n%s", err, out)
		}
		return
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"kill -9 of broker-3, and a change of the work: 4 replicas", "answered for generation 4", "broker-3 is back"} {
		if !strings.Contains(out, want) {
			t.Errorf("the tour does not show %q:\n%s", want, out)
		}
	}
	brokerGone(t)
}

func TestDemo_PortTaken(t *testing.T) {
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", brokerAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	out, err := newDemo(t).run(t, "--once")
	if err == nil || !strings.Contains(out, brokerAddr()) || !strings.Contains(out, "hint: ") || !strings.Contains(out, "--subnet") {
		t.Errorf("with the port taken: %v\n%s", err, out)
	}
}

func TestDemo_OutsideOfACheckout(t *testing.T) {
	d := newDemo(t)
	d2 := demo{root: t.TempDir(), dir: d.dir}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(d.root, "bin", "hawser"), d2.args()...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "no checkout") || !strings.Contains(string(out), "hint: ") {
		t.Errorf("outside of a checkout: %v\n%s", err, out)
	}
}

// transport returns the transport of the environment variable TRANSPORT, which all end-to-end tests use.
func transport() string { return cmp.Or(os.Getenv("TRANSPORT"), string(fleet.GRPC)) }

func brokerAddr() string {
	port := 8090
	if transport() == string(fleet.Mosquitto) {
		port = 8883
	}
	return fmt.Sprintf("127.%d.0.10:%d", subnet, port)
}

// brokerGone waits until nothing listens on the broker's address.
func brokerGone(t *testing.T) {
	t.Helper()
	var d net.Dialer
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 10*time.Second, true, func(ctx context.Context) (bool, error) {
		c, err := d.DialContext(ctx, "tcp", brokerAddr())
		if err == nil {
			return false, c.Close()
		}
		return true, ctx.Err()
	})
	if err != nil {
		t.Fatalf("the broker still listens: %v", err)
	}
}

// TestDemo_LinesOfTheDocumentation: the commands of docs/mqtt.md that start the demo over other transports work
// unchanged. Only --once and the location of this demo are added.
func TestDemo_LinesOfTheDocumentation(t *testing.T) {
	page, err := os.ReadFile("../../../docs/mqtt.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^make demo ARGS=--transport=(\w+)`).FindAllStringSubmatch(string(page), -1)
	if len(lines) != 2 {
		t.Fatalf("docs/mqtt.md has the lines %q, want two", lines)
	}
	for _, line := range lines {
		if only := os.Getenv("TRANSPORT"); only != "" && only != line[1] {
			continue
		}
		t.Run(line[1], func(t *testing.T) {
			d := newDemo(t)
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			args := fmt.Sprintf("ARGS=--transport=%s --once --dir %s --subnet %d", line[1], d.dir, subnet)
			out, err := exec.CommandContext(ctx, "make", "-C", d.root, "demo", args).CombinedOutput()
			if err != nil || !strings.Contains(string(out), "Applied=True AppliedManifestWorkComplete") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
