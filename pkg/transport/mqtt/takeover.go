package mqtt

import (
	"errors"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/hawser-io/hawser/pkg/transport"
)

const (
	// soon is the lifetime below which an end without a reason may be a session takeover by another client.
	// Brokers up to Mosquitto 2.0.14 do not report takeovers.
	soon = 30 * time.Second
	// stable is the lifetime of a connection that resets the count of takeovers.
	stable = time.Minute
	// firstDelay and lastDelay are the extra waits of a client after the first and after many takeovers, in
	// addition to the reconnect back-off.
	firstDelay, lastDelay = time.Second, 30 * time.Second
)

// takeovers counts consecutive connections that another client may have taken over. Two clients with one id end
// each other's connection at each connect. Without a growing delay they would make thousands of connections per
// second and receive events alternately.
type takeovers struct {
	mu  sync.Mutex
	row int
}

// another counts one takeover and returns the wait.
func (t *takeovers) another(lived time.Duration) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if lived >= stable {
		t.row = 0
	}
	delay := lastDelay
	if t.row < 6 {
		delay = min(lastDelay, firstDelay<<t.row)
	}
	t.row++
	return delay
}

// quiet records that a connection ended for another reason.
func (t *takeovers) quiet(lived time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if lived >= stable {
		t.row = 0
	}
}

// takenOver returns the error of a connection that another client has, or may have, taken over.
func (c *Conn) takenOver(what string, cause error) *transport.Error {
	o := &c.dialer.opts
	o.Metrics.takenOver()
	return &transport.Error{
		Code: transport.CodeUnavailable, Next: transport.NextBackOff, Delay: c.dialer.takeover.another(time.Since(c.since)),
		Message: what + ` with the client id "` + o.ClientID + `"`,
		Hint:    "look for a second program with the same name at " + c.broker + ", and let the broker bind client ids to identities",
		Err:     cause,
	}
}

// isBareEnd reports whether the other side ended a connection without a reason.
func isBareEnd(cause error) bool {
	return errors.Is(cause, io.EOF) || errors.Is(cause, io.ErrUnexpectedEOF) || errors.Is(cause, syscall.ECONNRESET) || errors.Is(cause, syscall.EPIPE)
}
