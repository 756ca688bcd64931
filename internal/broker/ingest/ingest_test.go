package ingest

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// hookRecorder records the calls of its hooks.
type hookRecorder struct {
	name   string
	seen   *[]string
	failed error // error of the hook after the commit
}

func (w hookRecorder) Begin(_ context.Context, op *store.Op, _ *codec.Envelope) (func(store.Outcome) error, error) {
	*w.seen = append(*w.seen, w.name+" begins "+op.Key.ResourceID)
	return func(o store.Outcome) error {
		line := w.name + " ends"
		if o.Result == store.Accepted {
			line = w.name + " sees it accepted"
		}
		*w.seen = append(*w.seen, line)
		return w.failed
	}, nil
}

// accepting is a store that accepts each op, or returns an error.
type accepting struct {
	store.Store
	err error
}

func (accepting) Err() error { return nil }

func (a accepting) Commit(_ context.Context, ops []store.Op) ([]store.Outcome, error) {
	return []store.Outcome{{Result: store.Accepted, Head: 7}}[:len(ops)], a.err
}

// TestPut_CallsHooksAroundCommit: each hook sees the op before it is queued, and the result before the
// publisher does.
func TestPut_CallsHooksAroundCommit(t *testing.T) {
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		commit, look error
		want         []string
		ok           bool
	}{
		"accepted":     {nil, nil, []string{"a begins w", "b begins w", "a sees it accepted", "b sees it accepted"}, true},
		"not written":  {boom, nil, []string{"a begins w", "b begins w", "a ends", "b ends"}, false},
		"not noted":    {nil, boom, []string{"a begins w", "b begins w", "a sees it accepted", "b sees it accepted"}, false},
		"neither, nor": {boom, boom, []string{"a begins w", "b begins w", "a ends", "b ends"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var seen []string
			i := New(&settings.Config{
				Store: accepting{err: c.commit}, Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(), Now: time.Now, QueueBytes: 1 << 20,
			}, nil)
			i.Connect(hookRecorder{"a", &seen, c.look}, hookRecorder{"b", &seen, nil})
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- i.commits.run(ctx) }() // the result is received below
			r, err := i.put(t.Context(), &request.Event{From: clientNamed("s"), Env: &codec.Envelope{}}, store.Op{Key: store.Key{ResourceID: "w"}})
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if !slices.Equal(seen, c.want) {
				t.Errorf("seen is %q, want %q", seen, c.want)
			}
			want := transport.Receipt{}
			if c.ok {
				want = transport.Receipt{Outcome: codec.OutcomeAccepted, Revision: 7}
			}
			if r != want || (err == nil) != c.ok || err != nil && transport.CodeOf(err) != transport.CodeInternal {
				t.Errorf("got %+v, %v; want %+v", r, err, want)
			}
		})
	}
}
