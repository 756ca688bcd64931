package histories

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/taskgroup"
)

// replica is a broker process. It is started again when it ends, as by Kubernetes.
type replica struct {
	name      string
	addr      string
	front     *proxy    // between clients and the broker
	databases [2]*proxy // between the broker and the servers
	ready     string    // URL of its readiness
	spec      childproc.Spec

	mu      sync.Mutex
	process *childproc.Process // nil while it is being started
}

// startReplica starts a broker. It runs until the test ends.
func startReplica(t *testing.T, name, dir string, d *database) *replica {
	t.Helper()
	r := &replica{name: name, addr: freeAddr(t), front: newProxy(t)}
	admin := freeAddr(t)
	r.front.forward(r.addr)
	url, proxies := d.connect(t)
	r.databases, r.ready = proxies, "http://"+admin+"/readyz"
	r.spec = childproc.Spec{
		Name: name, Path: brokerProgram, LogFile: filepath.Join(dir, name+".log"), Ready: r.checkReady,
		Args: []string{"--insecure", "--listen", r.addr, "--admin-listen", admin, "--data-dir", filepath.Join(t.TempDir(), name),
			"--store-engine=postgres", "--store-url", url, "--drain-timeout=4s"},
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { // the cleanup waits for it
		defer close(done)
		r.supervise(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return r
}

// freeAddr returns an address whose port is free, below the ephemeral ports of the system.
func freeAddr(t *testing.T) string {
	t.Helper()
	for range 100 {
		ports++
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", ports))
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		return l.Addr().String()
	}
	t.Fatal("found no free port")
	return ""
}

// ports is the last used port. Brokers begin above those of local PostgreSQL servers.
var ports = 20000 + int(time.Now().UnixNano()%8000)

// supervise runs the process until ctx ends.
func (r *replica) supervise(ctx context.Context) {
	for ctx.Err() == nil {
		p, err := childproc.Start(ctx, r.spec)
		if err != nil {
			taskgroup.Sleep(ctx, 100*time.Millisecond) // the pace of starts without a database
			continue
		}
		r.set(p)
		select {
		case <-p.Done():
		case <-ctx.Done():
			p.Kill()
		}
		r.set(nil)
	}
}

func (r *replica) set(p *childproc.Process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.process = p
}

// signal sends a signal to the process, if there is one. It returns that process.
func (r *replica) signal(s syscall.Signal) *childproc.Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.process != nil {
		_ = r.process.Signal(s) // it may have ended
	}
	return r.process
}

// checkReady returns nil if the broker says that it is ready.
func (r *replica) checkReady(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.ready, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }() // only the status is read
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s is not ready: %s", r.name, answer.Status)
	}
	return nil
}
