package transport

import (
	"context"
	"reflect"
	"sync"
)

// Reread is a Dialer to the broker that a configuration names, which is read again for each
// connection: an address that a person corrects is used at the next attempt. C is the
// configuration. Create it with [NewReread].
type Reread[C any] struct {
	read   func() (C, error)
	dialer func(C) (Dialer, error)
	tell   func(error)

	mu      sync.Mutex
	current C
	dial    Dialer
	told    string // the last error, until there is none
}

// NewReread reads the configuration for the first time. read returns it as it is now, dialer
// makes a Dialer of it. tell hears of what cannot be used, once: then what was before stays in
// use.
func NewReread[C any](read func() (C, error), dialer func(C) (Dialer, error), tell func(error)) (*Reread[C], error) {
	c, err := read()
	if err != nil {
		return nil, err
	}
	d, err := dialer(c)
	if err != nil {
		return nil, err
	}
	return &Reread[C]{read: read, dialer: dialer, tell: tell, current: c, dial: d}, nil
}

// Current is the configuration of the last Dial.
func (r *Reread[C]) Current() C {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current
}

// Dial implements [Dialer].
func (r *Reread[C]) Dial(ctx context.Context) (Conn, error) { return r.next().Dial(ctx) }

func (r *Reread[C]) next() Dialer {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, err := r.read()
	if err == nil && !reflect.DeepEqual(c, r.current) {
		var d Dialer
		if d, err = r.dialer(c); err == nil {
			r.current, r.dial = c, d
		}
	}
	switch {
	case err == nil:
		r.told = ""
	case err.Error() != r.told:
		r.told = err.Error()
		r.tell(err)
	}
	return r.dial
}
