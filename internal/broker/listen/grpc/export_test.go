package grpc

import "time"

// LimitBodies sets how much bodies may take, in all and of one identity.
func (f *Front) LimitBodies(all, each int64) {
	f.gate.mu.Lock()
	defer f.gate.mu.Unlock()
	f.gate.limits.bodies = all
	for role, a := range f.gate.limits.roles {
		a.bodies = each
		f.gate.limits.roles[role] = a
	}
	for _, p := range f.gate.parties {
		p.allowance.bodies = each
	}
}

// LimitIdle sets how long a connection without a call stays open.
func (f *Front) LimitIdle(d time.Duration) { f.idle = d }

// Held is what bodies take at the moment, and how many calls run.
func (f *Front) Held() (bodies int64, calls int) {
	f.gate.mu.Lock()
	defer f.gate.mu.Unlock()
	for _, p := range f.gate.parties {
		for _, n := range p.kinds {
			calls += n
		}
	}
	return f.gate.bodies, calls
}

// SetClock sets what time it is for the front; before Run.
func (f *Front) SetClock(now func() time.Time) { f.gate.now = now }

// Look ends the connections that may not go on.
func (f *Front) Look() { f.look(true) }

// Strangers are the connections that may call nothing.
func (f *Front) Strangers() int {
	f.gate.mu.Lock()
	defer f.gate.mu.Unlock()
	return len(f.gate.strangers)
}
