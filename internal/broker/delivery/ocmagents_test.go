package delivery

import (
	"testing"

	"github.com/hawser-io/hawser/internal/broker/deliveryqueue"
	"github.com/hawser-io/hawser/internal/broker/store"
)

// Scenario:
//
//	t1: a spec and its deletion are committed, and the router lags behind.
//	t2: a holdback for an earlier work with the id ends; the record is sent in its current form: the last spec
//	and its deletion.
//	t3: the router reaches the deletion.
//
// Result: until t3 the stream remembers that the agent has both, and sends the spec only once. A second spec
// would restore the work while the agent reports it as deleted.
func TestOCMAgent_RemembersADeletionUntilTheRouterCatchesUp(t *testing.T) {
	k := ocmAgentState{answered: 3, deleted: map[string]uint64{"w": 7}, early: map[string]bool{"w": true}}
	k.routed(2)
	if !k.early["w"] {
		t.Error("what came before the comparison is forgotten before the router is past that")
	}
	k.routed(6)
	if k.early["w"] || k.deleted["w"] != 7 {
		t.Errorf("early %v, deleted %v", k.early, k.deleted)
	}
	k.routed(7)
	if len(k.deleted) != 0 {
		t.Errorf("still there: %v", k.deleted)
	}
}

// TestUnrouted_SpecFirst: the router flags a deletion if it has not read the spec that the deletion replaced.
func TestUnrouted_SpecFirst(t *testing.T) {
	spec := func(revision uint64) store.Change {
		return store.Change{Revision: revision, Part: store.SpecPart, State: store.Live}
	}
	deletion := func(revision, last uint64) store.Change {
		return store.Change{Revision: revision, Part: store.SpecPart, State: store.Tombstone, LastSpec: last}
	}
	for what, c := range map[string]struct {
		accepted uint64         // here, before the router reads anything
		before   []store.Change // read before the last change
		all      bool           // there were no others
		last     store.Change
		want     deliveryqueue.Flags
	}{
		"an older spec":                          {last: deletion(12, 9), want: deliveryqueue.Deletion},
		"a spec of another broker":               {last: deletion(12, 11), want: deliveryqueue.Deletion | deliveryqueue.SpecFirst},
		"a spec that this broker accepted":       {accepted: 11, last: deletion(12, 0), want: deliveryqueue.Deletion | deliveryqueue.SpecFirst},
		"the spec was read, and others are left": {before: []store.Change{spec(11)}, last: deletion(12, 11), want: deliveryqueue.Deletion},
		"the spec was read":                      {before: []store.Change{spec(11)}, all: true, last: deletion(12, 11), want: deliveryqueue.Deletion},
		"a repeated deletion":                    {before: []store.Change{deletion(12, 11)}, last: deletion(13, 11), want: deliveryqueue.Deletion},
		"the second spec was not read":           {before: []store.Change{spec(11)}, last: deletion(14, 13), want: deliveryqueue.Deletion | deliveryqueue.SpecFirst},
		"a spec":                                 {last: spec(11)},
	} {
		u := newUnrouted(10)
		if c.accepted != 0 {
			u.accepted[c.last.Key] = c.accepted
		}
		for i := range c.before {
			u.flags(&c.before[i])
		}
		if len(c.before) > 0 {
			u.pass(c.before, c.all)
		}
		if got := u.flags(&c.last); got != c.want {
			t.Errorf("%s: flags %b, want %b", what, got, c.want)
		}
	}
}
