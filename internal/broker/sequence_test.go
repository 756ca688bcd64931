package broker_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// TestPublish_SequenceIDs:
//
// Scenario:
//
//	t1: an agent with a wrong clock, or a hostile one, sends a sequence id that is too high for later ids to exceed.
//	t2: it sends a normal sequence id.
//
// Result: the first status is rejected, and the second one is accepted.
func TestPublish_SequenceIDs(t *testing.T) {
	// The clock of these tests is before the time from which sequence ids count.
	at := func(ahead time.Duration, node int64) string {
		return fmt.Sprint(ahead.Milliseconds()<<22 | node<<12)
	}
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.source("src")
		agent := w.subscribe(w.agent("c1"))
		w.put(source, work{version: 1}.event())
		before := w.Store.Head().Revision
		for name, sequence := range map[string]string{
			"of another node": at(time.Hour, 7), "of node 0": "47", "the largest": "9223372036854771711",
			"days ahead": at(codec.SequenceTolerance+time.Second, 1),
		} {
			for _, deleted := range []bool{false, true} {
				_, err := w.Publish(w.Context(), agent.peer, w.event(report{version: 1, sequence: sequence, deleted: deleted}), "")
				e := w.refused(err, transport.CodeInvalid)
				if e.Attribute != codec.ExtSequenceID || transport.Retryable(e) || w.Store.Head().Revision != before {
					t.Errorf("%s: %+v, the store is at %d", name, e, w.Store.Head().Revision)
				}
			}
		}
		for _, c := range []struct {
			sequence, want string
		}{
			{at(14*time.Hour, 1), codec.OutcomeAccepted}, // ahead by a time zone
			{at(time.Hour, 1), codec.OutcomeStale},
			{at(codec.SequenceTolerance, 1), codec.OutcomeAccepted},
		} {
			if got := w.put(agent.peer, w.event(report{version: 1, sequence: c.sequence})); got != c.want {
				t.Errorf("%s: %s, want %s", c.sequence, got, c.want)
			}
		}
		w.put(source, work{version: 2, deleting: true}.event())
		if got := w.put(agent.peer, w.event(report{version: 2, sequence: at(time.Minute, 1), deleted: true})); got != codec.OutcomeConfirmed {
			t.Errorf("a deletion is confirmed with a lower number: %s", got)
		}
	})
}
