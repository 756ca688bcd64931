package broker_test

import (
	"cmp"
	"testing"

	"github.com/hawser-io/hawser/pkg/codec"
)

// TestAhead_SendsRepeatedDeletion:
//
// Scenario:
//
//	t1: an OCM source deletes a work; the store is copied before its agent confirms that.
//	t2: the agent confirms, and gets the recreated work with a higher version.
//	t3: the store is restored. It has the deletion; the agent lists a newer version.
//	t4: the source, which does not compare, publishes its state again.
//
// Result: the repeated deletion is the source's confirmation, and is sent to the agent. Otherwise it would wait
// for a comparison for ever.
func TestAhead_SendsRepeatedDeletion(t *testing.T) {
	deletion := work{version: 5, deleting: true}
	recreated := work{version: 7, data: `{"manifests":[],"round":2}`}
	for name, c := range map[string]struct {
		before, again []work
		outcome       string // outcome of the last publish
		action        string // action of the event that the agent gets; "" means resync_response
	}{
		"the deletion":            {[]work{deletion}, []work{deletion}, codec.OutcomeAccepted, ""},
		"what waits behind it":    {[]work{deletion}, []work{recreated}, codec.OutcomeQueued, ""},
		"what waited behind it":   {[]work{deletion, recreated}, []work{recreated}, codec.OutcomeQueued, ""},
		"the end of what waited":  {[]work{deletion, recreated}, []work{{version: 7, deleting: true}}, codec.OutcomeAccepted, "delete_request"},
		"all, and more than once": {[]work{deletion}, []work{deletion, recreated, recreated}, codec.OutcomeUnchanged, ""},
		"an update request":       {[]work{deletion}, []work{{version: 6, action: codec.UpdateRequest}}, codec.OutcomeStale, ""},
	} {
		t.Run(name, func(t *testing.T) {
			before := func(w *world) {
				w.subscribe(w.agent("c1")).cancel() // an agent has subscribed once
				w.put(w.source("src"), work{version: 5}.event())
				for _, k := range c.before {
					w.put(w.source("src"), k.event())
				}
			}
			inRestored(t, before, func(w *world) {
				ours := w.open(w.agent("c1"), hawser)
				w.request(ours, held("w1", 7))
				ours.expect("status resync_request  v0")
				outcome := ""
				for _, k := range c.again {
					outcome = w.put(w.source("src"), k.event())
				}
				if outcome != c.outcome {
					t.Errorf("outcome %q", outcome)
				}
				late := w.open(w.agent("c1"), hawser)
				w.request(late, held("w1", 7))
				if c.outcome == codec.OutcomeStale {
					ours.expect()
					late.expect("status resync_request  v0")
					return
				}
				// The deletion has the version that the agent holds; otherwise the agent would drop it as stale.
				ours.expect("spec " + cmp.Or(c.action, "resync_response") + " w1 v7 deleting")
				late.expectAny("spec resync_response w1 v7 deleting", "status resync_request  v0")
				if o := w.put(ours.peer, w.event(report{version: 7, deleted: true})); o != codec.OutcomeConfirmed {
					t.Errorf("the confirmation is %q", o)
				}
			})
		})
	}
}

// TestAhead_ClearedByDeletion checks that a new deletion is sent with the version that the agent listed. Such a
// deletion is newer than every state that the store may have lost.
func TestAhead_ClearedByDeletion(t *testing.T) {
	before := func(w *world) { w.put(w.source("src"), work{version: 5}.event()) }
	inRestored(t, before, func(w *world) {
		ocm, ours := w.open(w.agent("c1"), nil), w.open(w.agent("c1"), hawser)
		for _, agent := range []*tap{ocm, ours} {
			w.request(agent, held("w1", 7))
			agent.expect("status resync_request  v0")
		}
		w.put(w.source("src"), work{version: 5, deleting: true}.event())
		ocm.expect("spec resync_response w1 v5 deleting")
		ours.expect("spec resync_response w1 v7 deleting")
	})
}
