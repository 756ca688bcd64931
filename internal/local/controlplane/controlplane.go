// Package controlplane builds the test control plane of test/controlplane and runs it as a child process. It is
// a real etcd and kube-apiserver with simulated nodes. The demo, tests and benchmarks use it for hubs and
// managed clusters, one process each.
package controlplane

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// stopTime bounds the stop of a control plane, which normally takes some milliseconds.
const stopTime = 10 * time.Second

// Config configures a control plane.
type Config struct {
	// Binary is the path of the program "controlplane", see Build.
	Binary string
	// Dir is the state directory. A cluster that was started there before continues with its objects, port and
	// credentials, even if it was killed.
	Dir string
	// Name is the name of the cluster and of the context in the kubeconfig. Empty means the last element of Dir.
	Name string
	// Port is the https port on 127.0.0.1. 0 means the port of the last run in Dir, or a free one for the first
	// run.
	Port int
	// Nodes is the number of simulated nodes. With 0, pods stay Pending.
	Nodes int
	// ExtraArgs are flags of kube-apiserver.
	ExtraArgs []string
	// Log receives the log of the control plane, thousands of lines. It may be nil. One goroutine writes to it, and
	// ends before Wait returns.
	Log io.Writer
}

func (c Config) args() []string {
	args := []string{"--dir", c.Dir, "--port", strconv.Itoa(c.Port), "--nodes", strconv.Itoa(c.Nodes), "--stdin"}
	if c.Name != "" {
		args = append(args, "--name", c.Name)
	}
	if len(c.ExtraArgs) > 0 {
		args = append(append(args, "--"), c.ExtraArgs...)
	}
	return args
}

// Cluster is a running or ended control plane. Its methods may be called from several goroutines, in any order
// and number.
type Cluster struct {
	// KubeconfigPath is the path of an administrator's kubeconfig. It stays valid over restarts in the same
	// directory.
	KubeconfigPath string

	dir      string
	cmd      *exec.Cmd
	stdin    io.Closer // closing it stops the process, also when this process ends
	log      *tail
	stopTime time.Duration
	stopping atomic.Bool // Stop was called
	killed   atomic.Bool // this package sent SIGKILL
	ended    chan struct{}
	err      error // how it ended; written before ended is closed
}

// Start runs a control plane and returns when it is ready, after a few seconds. The control plane ends with
// Stop, Kill, ctx, or in any way with this process. If it does not become ready, the error contains the end of
// its log, and no process is left.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	c := &Cluster{dir: cfg.Dir, log: newTail(cfg.Log), stopTime: stopTime, ended: make(chan struct{})}
	c.cmd = exec.CommandContext(ctx, cfg.Binary, cfg.args()...)
	c.cmd.Stderr = c.log
	c.cmd.Cancel = c.kill
	// Scenario:
	//   t1: Ctrl-C at a terminal sends a signal to each process of the group.
	//   t2: a control plane in this group ends at once.
	//   t3: this process detects an unexpected end, which is a failure.
	// Result: the control plane has its own process group, and ends only when this package stops it.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start control plane: %w", err)
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start control plane: %w", err), stdin.Close())
	}
	c.stdin = stdin
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start control plane (build it with test/controlplane/build.sh): %w", err)
	}
	ready := make(chan string, 1)
	go c.follow(stdout, ready)
	select {
	case c.KubeconfigPath = <-ready:
		return c, nil
	case <-c.ended:
		if c.killed.Load() { // because ctx ended
			return nil, fmt.Errorf("start control plane in %s: %w", cfg.Dir, context.Cause(ctx))
		}
		return nil, c.err
	}
}

// follow reads the line that reports readiness, and then waits for the end of the process.
func (c *Cluster) follow(stdout io.Reader, ready chan<- string) {
	lines := bufio.NewReader(stdout)
	line, readErr := lines.ReadString('\n')
	if readErr == nil {
		ready <- strings.TrimSpace(line)
		_, readErr = io.Copy(io.Discard, lines)
	}
	err := c.cmd.Wait()
	if errors.Is(readErr, io.EOF) {
		readErr = nil
	}
	c.err = c.startError(err, readErr)
	close(c.ended)
}

// startError distinguishes a requested end from a failure.
func (c *Cluster) startError(err, readErr error) error {
	switch {
	case c.killed.Load():
		return c.log.failure()
	case err != nil:
		return fmt.Errorf("control plane in %s: %w%s", c.dir, err, c.log.lastLines())
	case !c.stopping.Load():
		return fmt.Errorf("control plane in %s ended by itself%s", c.dir, c.log.lastLines())
	}
	return errors.Join(readErr, c.log.failure())
}

// RESTConfig returns an administrator's client configuration, without a rate limit.
func (c *Cluster) RESTConfig() (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", c.KubeconfigPath)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig of the control plane in %s: %w", c.dir, err)
	}
	cfg.QPS = -1
	return cfg, nil
}

// Done is closed when the control plane has ended.
func (c *Cluster) Done() <-chan struct{} { return c.ended }

// Wait waits for the end of the control plane. The error is nil for a requested end; otherwise it contains the
// end of the log.
func (c *Cluster) Wait() error {
	<-c.ended
	return c.err
}

// Stop ends the control plane and waits, as Wait does. Objects stay in the state directory.
func (c *Cluster) Stop() error {
	c.stopping.Store(true)
	_ = c.stdin.Close() // the error of a second close is irrelevant
	deadline := time.NewTimer(c.stopTime)
	defer deadline.Stop()
	select {
	case <-c.ended:
		return c.err
	case <-deadline.C:
		err := fmt.Errorf("control plane in %s did not stop in %v and was killed", c.dir, c.stopTime)
		return errors.Join(err, c.Kill())
	}
}

// Kill ends the control plane with SIGKILL, like a crash, and waits, as Wait does. Objects stay in the state
// directory.
func (c *Cluster) Kill() error {
	select {
	case <-c.ended: // it ended before, so this call is not the reason
	default:
		_ = c.kill() // fails if it ends at this moment
	}
	return c.Wait()
}

func (c *Cluster) kill() error {
	c.killed.Store(true)
	return c.cmd.Process.Kill()
}
