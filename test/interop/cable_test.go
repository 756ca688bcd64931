package interop

import (
	"io"
	"net"
	"sync"
	"testing"
)

// cable is the network between a client and a broker. It can be cut, and plugged into another broker. A client
// that dials while the cable is cut waits until it is plugged again.
type cable struct {
	addr     string
	listener net.Listener
	wg       sync.WaitGroup

	mu     sync.Mutex
	target string // "" while cut
	change chan struct{}
	ends   map[net.Conn]bool
	closed bool
}

// newCable returns a cable to target, a cut cable for "".
func newCable(t testing.TB, target string) *cable {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cable{addr: l.Addr().String(), listener: l, target: target, change: make(chan struct{}), ends: map[net.Conn]bool{}}
	c.wg.Go(c.accept)
	t.Cleanup(c.close)
	return c
}

func (c *cable) accept() {
	for {
		near, err := c.listener.Accept()
		if err != nil {
			return // the listener is closed
		}
		if c.hold(near) {
			c.wg.Go(func() { c.connect(near) })
		}
	}
}

// hold stores a connection so that cut and close can end it. It returns false if the cable is closed.
func (c *cable) hold(end net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		_ = end.Close()
		return false
	}
	c.ends[end] = true
	return true
}

// connect waits until the cable is plugged, and copies bytes in both directions.
func (c *cable) connect(near net.Conn) {
	defer c.drop(near)
	target, ok := c.plugged()
	if !ok {
		return
	}
	remote, err := net.Dial("tcp", target)
	if err != nil || !c.hold(remote) {
		return
	}
	defer c.drop(remote)
	c.wg.Go(func() {
		_, _ = io.Copy(remote, near) // ends when either end is closed
		_ = remote.Close()
	})
	_, _ = io.Copy(near, remote)
}

// plugged waits for a target. It returns false when the cable is closed.
func (c *cable) plugged() (string, bool) {
	for {
		c.mu.Lock()
		target, change, closed := c.target, c.change, c.closed
		c.mu.Unlock()
		if closed {
			return "", false
		}
		if target != "" {
			return target, true
		}
		<-change
	}
}

func (c *cable) drop(end net.Conn) {
	_ = end.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.ends, end)
}

// cut breaks all connections. New connections wait.
func (c *cable) cut() { c.set("", false) }

// plug connects new and waiting connections to target.
func (c *cable) plug(target string) { c.set(target, false) }

func (c *cable) set(target string, closed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.target, c.closed = target, closed
	if target == "" {
		for end := range c.ends {
			_ = end.Close()
		}
	}
	close(c.change)
	c.change = make(chan struct{})
}

func (c *cable) close() {
	_ = c.listener.Close()
	c.set("", true)
	c.wg.Wait()
}
