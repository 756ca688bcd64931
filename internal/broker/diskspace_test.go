package broker_test

import (
	"context"
	"strings"
	"testing"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// scarce is a store whose Err returns a value that the test sets.
type scarce struct {
	store.Store
	err error
}

func (s *scarce) Err() error { return s.err }

// Commit fails for the work "late", as if the disk was full only after the publish was queued, and for the work "away",
// as if the database did not answer.
func (s *scarce) Commit(ctx context.Context, ops []store.Op) ([]store.Outcome, error) {
	switch ops[0].Name {
	case "late":
		return nil, store.ErrNoSpace
	case "away":
		return nil, store.ErrUnavailable
	}
	return s.Store.Commit(ctx, ops)
}

// TestPublish_NoSpace checks the broker on a full disk. On a nearly full disk it rejects new data and accepts
// deletions. Without space it rejects everything. Then it recovers by itself,
// as after an outage of a database.
func TestPublish_NoSpace(t *testing.T) {
	disk := &scarce{}
	inWrapped(t, broker.Config{}, func(s store.Store) store.Store { disk.Store = s; return disk }, func(w *world) {
		source, agent := w.source("src"), w.agent("c1")
		w.subscribe(agent)
		w.put(source, work{id: "u1", version: 1}.event())
		w.put(source, work{id: "u2", name: "n2", version: 1}.event())
		refused := func(p transport.Peer, event []byte, reported string) {
			w.Helper()
			_, err := w.Publish(w.Context(), p, event, "")
			if e := w.refused(err, transport.CodeOverloaded); !e.Full || !strings.Contains(e.Message, reported) {
				t.Errorf("refused with %v", e)
			}
		}

		disk.err = store.ErrLow
		refused(source, work{id: "u3", name: "n3", version: 1}.event(), "nearly full")
		refused(source, work{id: "u1", version: 2}.event(), "nearly full")
		refused(agent, w.event(report{id: "u1", version: 1}), "nearly full")
		if got := w.put(source, work{id: "u1", version: 2, deleting: true}.event()); got != codec.OutcomeAccepted {
			t.Errorf("a deletion: %s", got)
		}
		if got := w.put(agent, w.event(report{id: "u1", version: 2, deleted: true})); got != codec.OutcomeConfirmed {
			t.Errorf("the status of a deletion: %s", got)
		}

		disk.err = store.ErrNoSpace
		refused(source, work{id: "u2", name: "n2", version: 2, deleting: true}.event(), "is full")

		disk.err = nil
		refused(source, work{id: "u4", name: "late", version: 1}.event(), "is full")
		if err := w.Ready(); err != nil {
			t.Errorf("it has room again: %v", err)
		}
		w.put(source, work{id: "u3", name: "n3", version: 1}.event())

		_, err := w.Publish(w.Context(), source, work{id: "u5", name: "away", version: 1}.event(), "")
		w.wantCode(err, transport.CodeUnavailable)
		if err := w.Ready(); err != nil {
			t.Errorf("the database answers again: %v", err)
		}
	})
}
