// Package childproc runs child processes for the demo, the end-to-end tests and the benchmarks. Their output
// goes to a log file. They can be stopped, killed and started again. No child outlives its parent, even if the
// parent is killed.
package childproc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Spec describes a process. Start may use it repeatedly.
type Spec struct {
	// Name is used in errors, e.g. "broker".
	Name string
	Path string
	Args []string
	// Env is added to the environment of this process, "KEY=value".
	Env []string
	// LogFile takes standard output and standard error; starts append.
	LogFile string
	// Ready is called repeatedly after the start until it returns nil; a nil Ready means ready at once.
	Ready func(ctx context.Context) error
	// ReadyWithin bounds the wait for Ready; 0 means 30 s.
	ReadyWithin time.Duration
}

// Process is a running or ended child.
type Process struct {
	spec Spec
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	err  error         // how it ended, valid after done
}

const (
	readyEvery  = 50 * time.Millisecond
	readyWithin = 30 * time.Second
	// stopWithin is how long Stop waits for SIGTERM to work.
	stopWithin = 20 * time.Second
	// tailBytes is how much of the log the error of a failed process contains, in bytes.
	tailBytes = 2000
)

// Start starts the process and waits until it is ready. If the process ends or is not ready in time, the error
// contains the end of the log, and no process is left.
func Start(ctx context.Context, s Spec) (*Process, error) {
	log, err := os.OpenFile(s.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Name, err)
	}
	defer func() { _ = log.Close() }() // the child has its own descriptor
	p := &Process{
		spec: s, done: make(chan struct{}),
		cmd: exec.Command(s.Path, s.Args...), //nolint:noctx // it ends with Stop or Kill, not with the context of its start
	}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Env = slices.Concat(os.Environ(), s.Env)
	p.cmd.SysProcAttr = dieWithParent()
	if err := startOnSpawnThread(p.cmd); err != nil {
		return nil, fmt.Errorf("%s: %w", s.Name, err)
	}
	go func() { // ends with the process, which ends by Stop, Kill or the parent's end
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	if err := p.waitReady(ctx); err != nil {
		p.Kill()
		return nil, fmt.Errorf("%s: %w\n%s", s.Name, err, p.LogTail())
	}
	return p, nil
}

func (p *Process) waitReady(ctx context.Context) error {
	if p.spec.Ready == nil {
		return nil
	}
	within := cmp.Or(p.spec.ReadyWithin, readyWithin)
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(readyEvery)
	defer tick.Stop()
	last := errors.New("readiness was never checked")
	for {
		err := p.spec.Ready(ctx)
		select {
		case <-p.done: // Ready must have found another process
			return fmt.Errorf("ended at start (%s)", p.ended())
		default:
		}
		if err == nil {
			return nil
		} else if ctx.Err() == nil {
			last = err
		}
		select {
		case <-p.done:
			return fmt.Errorf("ended at start (%s)", p.ended())
		case <-ctx.Done():
			return fmt.Errorf("not ready within %s: %w", within, last)
		case <-tick.C:
		}
	}
}

// Name returns the name of the spec.
func (p *Process) Name() string { return p.spec.Name }

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

func (p *Process) ended() string {
	if p.err == nil {
		return "exit status 0"
	}
	return p.err.Error()
}

// Stop sends SIGTERM and waits for the end. After 20 s it kills the process and returns an error that states
// it. Stopping an ended process is no error.
func (p *Process) Stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails only when it has ended
	select {
	case <-p.done:
		return nil
	case <-time.After(stopWithin):
		p.Kill()
		return fmt.Errorf("%s: did not stop within %s of SIGTERM and was killed", p.spec.Name, stopWithin)
	}
}

// Signal sends a signal. It fails if the process has ended.
func (p *Process) Signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("%s: %w", p.spec.Name, err)
	}
	return nil
}

// Kill sends SIGKILL and waits for the end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // fails only when it has ended
	<-p.done
}

// LogTail returns the last lines of the log file.
func (p *Process) LogTail() string {
	f, err := os.Open(p.spec.LogFile)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }() // the file was opened for reading only
	if st, err := f.Stat(); err == nil && st.Size() > tailBytes {
		_, _ = f.Seek(-tailBytes, io.SeekEnd)
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	return "last lines of " + p.spec.LogFile + ":\n" + strings.TrimSpace(string(b))
}

// Run runs a command to its end and returns its standard output. The error contains the command line and its
// standard error.
func Run(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

// spawnThread is the only OS thread that starts children. The kernel ties the parent-death signal to the
// forking thread, and Go retires idle threads.
var spawnThread = sync.OnceValue(func() chan<- func() { return newSpawnThread() })

func startOnSpawnThread(cmd *exec.Cmd) error {
	started := make(chan error, 1)
	spawnThread() <- func() { started <- cmd.Start() }
	return <-started
}
