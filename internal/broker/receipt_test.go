package broker_test

import (
	"context"
	"testing"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// TestPublish_ReportsTheRevision checks that each receipt has the revision of its decision. So a source can
// order any two answers, and an answer and an inventory.
func TestPublish_ReportsTheRevision(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		for _, step := range []struct {
			name    string
			peer    transport.Peer
			event   []byte
			outcome string
			code    transport.Code // code of the error; zero: accepted
			want    uint64
		}{
			{"accepted", w.source("src"), work{version: 2}.event(), codec.OutcomeAccepted, 0, 1},
			{"unchanged", w.source("src"), work{version: 2}.event(), codec.OutcomeUnchanged, 0, 1},
			{"another", w.source("src"), work{id: "other", version: 1, metadata: `{"name":"other"}`}.event(), codec.OutcomeAccepted, 0, 2},
			{"stale", w.source("src"), work{version: 1}.event(), codec.OutcomeStale, 0, 2},
			{"its name is taken", w.source("src2"), work{source: "src2", id: "third", name: "name-of-w1", version: 1}.event(), "", transport.CodeAlreadyExists, 2},
			{"the condition fails", w.source("src"), work{version: 3, extensions: map[string]any{codec.ExtSupersedes: "77"}}.event(), "", transport.CodeConflict, 2},
			{"not for a store", w.source("src"), work{version: 1, extensions: map[string]any{codec.ExtResourceID: nil}}.event(), "", transport.CodeInvalid, 2},
			{"not allowed", w.source("src2"), work{version: 1}.event(), "", transport.CodeDenied, 0},
		} {
			r, err := w.Publish(context.Background(), step.peer, step.event, "")
			if r.Revision != step.want || r.Outcome != step.outcome || (step.outcome == "") != (err != nil) || err != nil && transport.CodeOf(err) != step.code {
				t.Errorf("%s: got %+v, %v; want outcome %q or code %v at revision %d", step.name, r, err, step.outcome, step.code, step.want)
			}
		}
	})
}
