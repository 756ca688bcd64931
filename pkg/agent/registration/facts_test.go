package registration

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// starting is a cluster that denies requests until a given time, and counts them.
type starting struct {
	until    time.Time
	requests int
}

// Healthy implements Reader.
func (*starting) Healthy(context.Context) error { return nil }

// Facts implements Reader.
func (s *starting) Facts(context.Context) (Facts, error) {
	if s.requests++; time.Now().Before(s.until) {
		return Facts{}, errors.New("nodes is forbidden")
	}
	return Facts{Version: "v1.36.3"}, nil
}

// TestRead_RetriesDeniedFacts: denied facts are read again soon, with increasing waits.
func TestRead_RetriesDeniedFacts(t *testing.T) {
	for name, c := range map[string]struct {
		denied   time.Duration
		known    bool // the facts are known after 15 s
		requests int  // in ten minutes, at most
	}{
		"a moment": {5 * time.Second, true, 12},
		"for ever": {time.Hour, false, 14},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &starting{until: time.Now().Add(c.denied)}
				r := &Registration{c: Config{Reader: s, Log: slog.New(slog.DiscardHandler)}, events: make(chan event, 1000)}
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- r.read(ctx) }()
				<-time.After(15 * time.Second)
				core := NewCore(CoreConfig{Name: func() string { return "x" }, Random: func() float64 { return 0 }}, SavedState{}, "")
				for len(r.events) > 0 {
					(<-r.events)(core, time.Now())
				}
				if known := core.facts.Version != ""; known != c.known {
					t.Errorf("after 15 s the facts are known: %t", known)
				}
				<-time.After(10*time.Minute - 15*time.Second)
				stop()
				if err := <-ended; err != nil || s.requests > c.requests {
					t.Errorf("%d requests: %v", s.requests, err)
				}
			})
		})
	}
}
