package store_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/storetest"
	"github.com/hawser-io/hawser/pkg/codec"
)

// subscription is the naive model of one id: the last spec of its source that the store accepted.
type subscription struct {
	owner, name string
	tag         codec.Tag
	alive       bool
	receives    bool // the owner must be sent the Deleted status
}

// model is the store as its users see it: the last accepted spec of each id, without tombstones and queued
// specs.
type model map[string]subscription

// leave removes an id without a status. If there is a tombstone or a confirmed tombstone, the owner still gets
// the status.
func (m model) leave(l *storetest.Model, k store.Key, id string) {
	k.ResourceID = id
	if e, ok := l.Get(k); ok {
		m[id] = subscription{owner: e.Owner, receives: true}
		return
	}
	delete(m, id)
}

// take applies an op that the store accepted. before is its record; behind is the tombstone behind which its id
// was queued.
func (m model) take(l *storetest.Model, op store.Op, result store.ResultCode, before, behind *store.Meta) {
	id := op.Key.ResourceID
	c := m[id]
	switch op.Kind {
	case store.PutSpec:
		name := op.Name
		if name == "" {
			name = id
		}
		if op.Deleting {
			m[id] = subscription{owner: op.Owner, receives: true}
			return
		}
		for other, o := range m {
			if other != id && o.alive && o.name == name {
				m.leave(l, op.Key, other) // the op has replaced the work of this name
			}
		}
		m[id] = subscription{owner: op.Owner, name: name, tag: op.Tag, alive: true}
	case store.PutStatus:
		if result == store.Confirmed && !c.alive {
			m[id] = subscription{owner: c.owner, receives: true}
		}
	case store.TakeOver: // the tombstone is confirmed; the queued spec stays
		m[id] = subscription{owner: c.owner, receives: true}
	case store.Forget:
		switch {
		case result == store.Accepted: // a confirmed tombstone was removed
			delete(m, id)
		case before != nil && before.Queued != nil && before.Queued.ResourceID == id && behind == nil:
			// the queued spec of the same id becomes live
		default:
			m[id] = subscription{owner: c.owner, receives: true}
		}
	case store.CollectTombstone:
		if behind == nil { // otherwise the queued spec is not affected
			m.leave(l, op.Key, id)
		}
	case store.Drop:
		if w := store.QueuedID(before); w != "" {
			m.leave(l, op.Key, w)
		}
		m.leave(l, op.Key, id)
	case store.Transfer:
		c.owner = op.Owner
		m[id] = c
		if w := store.QueuedID(before); w != "" {
			o := m[w] // includes its confirmed tombstone, if there is one
			o.owner = op.Owner
			m[w] = o
		}
	}
}

// TestDecide_Model checks random histories. The model checks the invariants at each step. When all deletions
// are confirmed, the store must match the last specs of the sources. Live works are stored unchanged, and the
// owners of deleted works get the status.
func TestDecide_Model(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := storetest.NewModel()
		m := make(model)
		revision := func(k store.Key) uint64 {
			e, _ := l.Get(k)
			return e.SpecRevision
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 19).Draw(t, "cluster event") {
			case 0:
				l.MarkSubscribed(codec.ManifestBundles, cluster, "")
			case 1:
				l.UnbindCluster(codec.ManifestBundles, cluster)
			default:
				op := storetest.Draw(t, []string{cluster}, revision)
				step(t, l, m, op)
			}
		}
		confirmAll(t, l, m)
		compareWithModel(t, l, m)
	})
}

func step(t *rapid.T, l *storetest.Model, m model, op store.Op) {
	view, err := store.Look(l, store.Head{Revision: l.Head()}, &op)
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Apply(op)
	if err != nil {
		t.Fatalf("%+v: %v", op, err)
	}
	t.Logf("%+v: %s", op, outcomeString(s.Outcome))
	checkOrder(t, op, s)
	switch s.Outcome.Result {
	case store.Accepted, store.Confirmed, store.Queued:
		m.take(l, op, s.Outcome.Result, view.Record, view.BlockedBy)
	default:
	}
}

// checkOrder: versions and sequence ids decrease only where the rules allow it, and only the owner writes a
// record.
func checkOrder(t *rapid.T, op store.Op, s storetest.Step) {
	for _, w := range s.Writes {
		if w.Old == nil || w.New == nil {
			continue
		}
		if w.New.Sequence != w.Old.Sequence {
			if newer, err := codec.CompareSequence(w.Old.Sequence, w.New.Sequence); err != nil || !newer {
				t.Fatalf("%v: sequence %q after %q", w.Key, w.New.Sequence, w.Old.Sequence)
			}
		}
		sameRecord := w.Old.State == store.Live && w.New.State != store.ConfirmedTombstone && w.New.SpecRevision != w.Old.SpecRevision
		if sameRecord && w.New.Version < w.Old.Version && op.Version != 0 && op.Supersedes == 0 && op.IfRevision == 0 {
			t.Fatalf("%v: version %d after %d", w.Key, w.New.Version, w.Old.Version)
		}
		if op.Kind == store.PutSpec && (w.Old.Owner != op.Owner || w.New.Owner != op.Owner) {
			t.Fatalf("%v: %s wrote a record of %s", w.Key, op.Owner, w.Old.Owner)
		}
	}
}

// confirmAll acts as the agent and confirms each tombstone until none is left.
func confirmAll(t *rapid.T, l *storetest.Model, m model) {
	for n := int64(100); ; n++ {
		var next *store.Meta
		for _, e := range l.Scan(store.Scope{DataType: codec.ManifestBundles}) {
			if e.State == store.Tombstone {
				next = &e.Meta
				break
			}
		}
		if next == nil {
			return
		}
		if n > 200 {
			t.Fatalf("%v is never confirmed", next.Key)
		}
		op := deleted(next.ResourceID, next.Version, n)
		op.Key = next.Key
		step(t, l, m, op)
	}
}

func compareWithModel(t *rapid.T, l *storetest.Model, m model) {
	want, got := make(map[string]string), make(map[string]string)
	for id, c := range m {
		switch {
		case c.alive:
			want[id] = fmt.Sprintf("live %s %s %x", c.owner, c.name, c.tag)
		case c.receives:
			want[id] = "confirmed " + c.owner
		}
	}
	for _, e := range l.Scan(store.Scope{DataType: codec.ManifestBundles}) {
		if e.State == store.Live {
			got[e.ResourceID] = fmt.Sprintf("live %s %s %x", e.Owner, e.Name, e.Tag)
		} else {
			got[e.ResourceID] = "confirmed " + e.Owner
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("latest events and store differ (-sent +stored):\n%s", d)
	}
}
