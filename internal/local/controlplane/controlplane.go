// Package controlplane builds the test control plane of test/controlplane and
// runs it as a child process: a real etcd and kube-apiserver with simulated
// nodes. The demo, tests and benchmarks use it for hubs and for managed
// clusters, one process for each.
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

// stopTime is how long a control plane may take to stop. It takes some
// milliseconds.
const stopTime = 10 * time.Second

// Config says which control plane to run.
type Config struct {
	// Binary is the path of the program "controlplane", see Build.
	Binary string
	// Dir is the state directory. A cluster that was started there before goes
	// on with its objects, port and credentials, even if it was killed.
	Dir string
	// Name is the name of the cluster and the context in the kubeconfig. Empty
	// means the last element of Dir.
	Name string
	// Port is the https port on 127.0.0.1. 0 means the same one as the last
	// time in Dir, and a free one the first time.
	Port int
	// Nodes is the number of simulated nodes. Without any, pods stay Pending.
	Nodes int
	// ExtraArgs are flags of kube-apiserver.
	ExtraArgs []string
	// Log gets the log of the control plane, thousands of lines. It may be nil.
	// Writes come from one goroutine, which ends before Wait returns.
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

// Cluster is a control plane that runs, or has run. Its methods may be called
// from several goroutines, in any order and any number of times.
type Cluster struct {
	// KubeconfigPath is the path of an administrator's kubeconfig. It stays
	// valid over restarts in the same directory.
	KubeconfigPath string

	dir      string
	cmd      *exec.Cmd
	stdin    io.Closer // its end stops the process, so ours does too
	log      *tail
	stopTime time.Duration
	stopping atomic.Bool // Stop was called
	killed   atomic.Bool // by us
	ended    chan struct{}
	err      error // how it ended; written before ended is closed
}

// Start runs a control plane and returns when it is ready, which takes a few
// seconds. The control plane ends with Stop, with Kill, when ctx ends, or with
// this process, however that ends. If it does not get ready, the error has what
// it said last, and no process is left.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	c := &Cluster{dir: cfg.Dir, log: newTail(cfg.Log), stopTime: stopTime, ended: make(chan struct{})}
	c.cmd = exec.CommandContext(ctx, cfg.Binary, cfg.args()...)
	c.cmd.Stderr = c.log
	c.cmd.Cancel = c.kill
	// t1 Ctrl-C at a terminal is sent to every process of our group, t2 a control plane of
	// that group ends at once, t3 we find that it ended by itself, which is a failure;
	// therefore it is in a group of its own, and ends when we say so.
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

// follow reads the one line that tells that the control plane is ready, and
// then waits for the end of the process.
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

// startError tells an end that was asked for from others.
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

// RESTConfig returns a client configuration of an administrator, without a
// limit of requests per second.
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

// Wait waits for the end of the control plane. The error is nil if it was asked
// to end; otherwise it has what the control plane said last.
func (c *Cluster) Wait() error {
	<-c.ended
	return c.err
}

// Stop ends the control plane and waits for it, as Wait does. Objects stay in
// the state directory.
func (c *Cluster) Stop() error {
	c.stopping.Store(true)
	_ = c.stdin.Close() // a second close fails, and means nothing
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

// Kill ends the control plane as a crash would, by SIGKILL, and waits for it,
// as Wait does. Objects stay in the state directory.
func (c *Cluster) Kill() error {
	select {
	case <-c.ended: // before this, of which it must not be an excuse
	default:
		_ = c.kill() // fails if it ends at this moment
	}
	return c.Wait()
}

func (c *Cluster) kill() error {
	c.killed.Store(true)
	return c.cmd.Process.Kill()
}
