// Package functional runs the built control plane and checks that it behaves as the tests of Hawser need. It is
// a normal client of the control plane and links none of its code.
//
// HAWSER_CONTROLPLANE_DIR is the directory that build.sh prints. See README.md of the module for the whole
// command.
package functional

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	startTimeout = 60 * time.Second
	// waitTimeout is the longest wait for a condition. On an idle machine a condition needs well under a second.
	waitTimeout = 20 * time.Second
)

var (
	binDir string   // directory of the programs
	shared *cluster // one cluster for all tests that do not stop it
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	binDir = os.Getenv("HAWSER_CONTROLPLANE_DIR")
	if binDir == "" {
		fmt.Fprintln(os.Stderr, `HAWSER_CONTROLPLANE_DIR is not set: run HAWSER_CONTROLPLANE_DIR="$(./build.sh)" go test ./functional in test/controlplane`)
		return 1
	}
	dir, err := os.MkdirTemp("", "controlplane-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	p, err := launch("--dir", filepath.Join(dir, "shared"), "--nodes=2", "--stdin")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer p.kill()
	path, err := p.ready()
	if err == nil {
		shared, err = connect(path)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// process is a running control plane.
type process struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	lines  chan string // of standard output, closed at its end
	stderr tail
	ended  chan struct{}
	err    error // the exit error, valid after ended is closed
}

// launch starts the program without waiting until it is ready.
func launch(args ...string) (*process, error) {
	p := &process{
		cmd:   exec.Command(filepath.Join(binDir, "controlplane"), args...),
		lines: make(chan string, 1),
		ended: make(chan struct{}),
	}
	p.cmd.Stderr = &p.stderr
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.stdin = stdin
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("is HAWSER_CONTROLPLANE_DIR what build.sh printed? %w", err)
	}
	go func() {
		for s := bufio.NewScanner(stdout); s.Scan(); {
			select {
			case p.lines <- s.Text():
			default: // only the first line matters
			}
		}
		close(p.lines)
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// ready waits for the path of the kubeconfig, and returns it.
func (p *process) ready() (string, error) {
	select {
	case path, ok := <-p.lines:
		if ok {
			return path, nil
		}
		<-p.ended
		return "", fmt.Errorf("the control plane ended: %w\n%s", p.err, p.stderr.String())
	case <-time.After(startTimeout):
		return "", fmt.Errorf("the control plane is not ready after %v\n%s", startTimeout, p.stderr.String())
	}
}

// kill kills the process.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // the process may have ended
	<-p.ended
}

// end waits for a stopped process. It fails the test if the process ends late or with an error.
func (p *process) end(t *testing.T) {
	t.Helper()
	select {
	case <-p.ended:
		if p.err != nil {
			t.Fatalf("the control plane ended with %v, want success\n%s", p.err, p.stderr.String())
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the control plane did not stop")
	}
}

// start runs a control plane until the test ends. It returns when the control plane is ready.
func start(t *testing.T, args ...string) (*process, *cluster) {
	t.Helper()
	p, err := launch(args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	path, err := p.ready()
	if err != nil {
		t.Fatal(err)
	}
	c, err := connect(path)
	if err != nil {
		t.Fatal(err)
	}
	return p, c
}

// refused runs a control plane that must not start, and returns its standard error.
func refused(t *testing.T, wantCode int, args ...string) string {
	t.Helper()
	p, err := launch(args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	path, err := p.ready()
	if err == nil {
		t.Fatalf("%q started: %s", args, path)
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != wantCode {
		t.Fatalf("%q: %v, want exit code %d", args, err, wantCode)
	}
	return p.stderr.String()
}

// cluster holds the clients of a control plane.
type cluster struct {
	kubeconfig string // path
	config     *rest.Config
	typed      *kubernetes.Clientset
	dynamic    *dynamic.DynamicClient
}

func connect(kubeconfig string) (*cluster, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1
	typed, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return &cluster{kubeconfig: kubeconfig, config: cfg, typed: typed, dynamic: dyn}, nil
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, condition func(context.Context) (bool, error)) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, waitTimeout, true, condition)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func signal(t *testing.T, p *process, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// tail is a log. String returns its last lines.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.Write(b)
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(t.buf.String()), "\n")
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}
