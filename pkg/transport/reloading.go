package transport

import (
	"context"
	"reflect"
	"sync"
)

// ReloadingDialer is a Dialer that reads its configuration again before each connection. So the next attempt
// uses a corrected address. C is the type of the configuration. Create it with [NewReloadingDialer].
type ReloadingDialer[C any] struct {
	read    func() (C, error)
	dialer  func(C) (Dialer, error)
	onError func(error)

	mu        sync.Mutex
	current   C
	dial      Dialer
	lastError string // the last error, nil after a success
}

// NewReloadingDialer reads the configuration for the first time. read returns the current configuration, dialer makes a
// Dialer from it. report is called once for each unusable configuration; the previous one then stays in use.
func NewReloadingDialer[C any](read func() (C, error), dialer func(C) (Dialer, error), report func(error)) (*ReloadingDialer[C], error) {
	c, err := read()
	if err != nil {
		return nil, err
	}
	d, err := dialer(c)
	if err != nil {
		return nil, err
	}
	return &ReloadingDialer[C]{read: read, dialer: dialer, onError: report, current: c, dial: d}, nil
}

// Current returns the configuration of the last Dial.
func (r *ReloadingDialer[C]) Current() C {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current
}

// Dial implements [Dialer].
func (r *ReloadingDialer[C]) Dial(ctx context.Context) (Conn, error) { return r.next().Dial(ctx) }

func (r *ReloadingDialer[C]) next() Dialer {
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
		r.lastError = ""
	case err.Error() != r.lastError:
		r.lastError = err.Error()
		r.onError(err)
	}
	return r.dial
}
