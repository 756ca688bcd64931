package histories

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
)

// proxy forwards TCP connections to a target. While it is cut, it accepts connections and forwards nothing. Bytes that
// arrive meanwhile are forwarded later, as by a network that drops packets for some seconds.
type proxy struct {
	addr string

	mu     sync.Mutex
	target string
	open   chan struct{} // closed while it forwards
	conns  map[net.Conn]bool
}

// newProxy starts a proxy that runs until the test ends.
func newProxy(t *testing.T) *proxy {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: l.Addr().String(), open: make(chan struct{}), conns: map[net.Conn]bool{}}
	close(p.open)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { p.serve(ctx, c) })
		}
	})
	t.Cleanup(func() {
		stop()
		_ = l.Close() // ends Accept
		p.reset()
		running.Wait()
	})
	return p
}

// forward sets the target, and ends all connections to the former one.
func (p *proxy) forward(to string) {
	p.mu.Lock()
	p.target = to
	p.mu.Unlock()
	p.reset()
}

// cut stops the proxy until heal.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = make(chan struct{})
}

func (p *proxy) heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.open)
}

// reset ends all connections.
func (p *proxy) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close() // both pumps see it
	}
}

func (p *proxy) gate() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open
}

// keep registers a connection, so that reset ends it. The returned function closes it.
func (p *proxy) keep(c net.Conn) func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = true
	return func() {
		_ = c.Close() // it may be closed already
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, c)
	}
}

func (p *proxy) serve(ctx context.Context, client net.Conn) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer p.keep(client)()
	if !p.pass(ctx) {
		return
	}
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	server, err := new(net.Dialer).DialContext(ctx, "tcp", target)
	if err != nil {
		return // the client sees the end
	}
	defer p.keep(server)()
	var pumps sync.WaitGroup
	pump := func(to io.Writer, from net.Conn) {
		defer func() {
			stop()
			_ = client.Close() // ends the other pump
			_ = server.Close()
		}()
		b := make([]byte, 64<<10)
		for {
			n, err := from.Read(b)
			if n > 0 {
				if !p.pass(ctx) {
					return
				}
				if _, err := to.Write(b[:n]); err != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}
	pumps.Go(func() { pump(server, client) })
	pumps.Go(func() { pump(client, server) })
	pumps.Wait()
}

// pass waits until the proxy forwards, and reports false when ctx has ended before.
func (p *proxy) pass(ctx context.Context) bool {
	select {
	case <-p.gate():
		return true
	case <-ctx.Done():
		return false
	}
}
