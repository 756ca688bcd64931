package grpc

import (
	"time"

	"github.com/hawser-io/hawser/internal/broker/listener"
	"github.com/hawser-io/hawser/internal/identity"
)

// LimitIdle sets how long a connection without a call stays open.
func (f *Front) LimitIdle(d time.Duration) { f.idle = d }

// Reserved is what bodies take at the moment, and how many calls run.
func (f *Front) Reserved() (bodies int64, calls int) {
	u := f.port.Usage()
	return u.Bodies, u.Calls
}

// Look ends the connections that may not go on.
func (f *Front) Look() { f.port.Look() }

// Unidentified are the connections that may call nothing.
func (f *Front) Unidentified() int {
	return f.port.Usage().Connections[listener.Peers{Transport: listener.GRPC}]
}

// Connections are those of a role.
func (f *Front) Connections(r identity.Role) int {
	return f.port.Usage().Connections[listener.Peers{Role: r, Transport: listener.GRPC}]
}
