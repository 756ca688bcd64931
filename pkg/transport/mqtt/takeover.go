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
	// soon: a connection that the broker ends without a word so soon after it began was perhaps
	// taken over. Brokers up to Mosquitto 2.0.14 do not say it.
	soon = 30 * time.Second
	// stable: a connection that lived so long ends a row of takeovers.
	stable = time.Minute
	// firstDelay and lastDelay are what a party waits after the first and after many takeovers,
	// beside what every reconnect waits.
	firstDelay, lastDelay = time.Second, 30 * time.Second
)

// takeovers counts the connections in a row that another client may have taken over. Of two
// clients with one id each ends the other's connection whenever it connects: without a delay
// that grows they would make thousands of connections a second, and hand events to and fro.
type takeovers struct {
	mu  sync.Mutex
	row int
}

// another counts one more and returns how long to wait.
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

// quiet says that a connection ended for another reason.
func (t *takeovers) quiet(lived time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if lived >= stable {
		t.row = 0
	}
}

// takenOver is the error of a connection that another client has taken over, or may have.
func (c *Conn) takenOver(what string, cause error) *transport.Error {
	o := &c.dialer.opts
	o.Metrics.takenOver()
	return &transport.Error{
		Code: transport.CodeUnavailable, Next: transport.NextBackOff, Delay: c.dialer.takeover.another(time.Since(c.since)),
		Message: what + ` with the client id "` + o.ClientID + `"`,
		Hint:    "look for a second program with the same name at " + o.Broker + ", and let the broker bind client ids to identities",
		Err:     cause,
	}
}

// isBareEnd reports whether a connection was ended by the other side, without a word.
func isBareEnd(cause error) bool {
	return errors.Is(cause, io.EOF) || errors.Is(cause, io.ErrUnexpectedEOF) || errors.Is(cause, syscall.ECONNRESET) || errors.Is(cause, syscall.EPIPE)
}
