package grpc

import (
	"time"

	"github.com/hawser-io/hawser/internal/broker/listener"
	"github.com/hawser-io/hawser/internal/identity"
)

// LimitIdle sets how long a connection without a call stays open.
func (f *Front) LimitIdle(d time.Duration) { f.idle = d }

// Reserved returns the bytes of all bodies and the number of running calls.
func (f *Front) Reserved() (bodies int64, calls int) {
	u := f.port.Usage()
	return u.Bodies, u.Calls
}

// Look ends the connections that may not continue.
func (f *Front) Look() { f.port.Look() }

// Unidentified returns the number of unidentified connections.
func (f *Front) Unidentified() int {
	return f.port.Usage().Connections[listener.Peers{Transport: listener.GRPC}]
}

// Connections returns the number of connections of a role.
func (f *Front) Connections(r identity.Role) int {
	return f.port.Usage().Connections[listener.Peers{Role: r, Transport: listener.GRPC}]
}
