package store_test

import (
	"testing"

	"github.com/hawser-io/hawser/internal/broker/store"
)

func takeOver(id string, revision uint64) store.Op {
	o := admin(store.TakeOver, id, "")
	o.IfRevision = revision
	return o
}

func TestDecide_TakeOver(t *testing.T) {
	t.Parallel()
	tomb := []store.Op{create("u1", "n1", 5, "a"), status("u1", 5, 1, "x"), del("u1", "n1", 5)}
	with := func(ops ...store.Op) []store.Op { return append(append([]store.Op{}, tomb...), ops...) }
	t3 := "u1 tombstone s1/n1 v5 a@3 x@2 v5"
	runRows(t, []row{
		{
			name: "the queued spec takes over, and its owner gets the Deleted status", before: with(create("u2", "n1", 1, "b")), op: takeOver("u1", 3),
			want:  "confirmed 5 s1",
			after: []string{"u1 confirmed s1/n1 v5 -@4 -@4 v5", "u2 live s1/n1 v1 b@5"},
			feed:  []string{"4 u1 status s1 confirmed", "5 u2 spec s1 live"},
		},
		{name: "of another revision", before: with(create("u2", "n1", 1, "b")), op: takeOver("u1", 1), want: "ignored 3 s1", after: []string{t3 + " (queued: u2 s1/n1 v1 b)"}},
		{name: "nothing waits", before: tomb, op: takeOver("u1", 3), want: "ignored 3 s1", after: []string{t3}},
		{name: "it waits for its own id", before: with(create("u1", "n1", 1, "b")), op: takeOver("u1", 3), want: "ignored 3 s1", after: []string{t3 + " (queued: u1 s1/n1 v1 b)"}},
		{
			name: "a deletion waits", before: with(create("u2", "n1", 1, "b"), del("u2", "n1", 1)), op: takeOver("u1", 3),
			want: "ignored 3 s1", after: []string{t3 + " (deletion waits: u2 s1/n1 v1 b)"},
		},
		{name: "a live record", before: []store.Op{create("u1", "n1", 5, "a")}, op: takeOver("u1", 1), want: "ignored 1 s1", after: []string{"u1 live s1/n1 v5 a@1"}},
		{name: "nothing", op: takeOver("u1", 1), want: "ignored 0"},
	})
}

// TestTakesOver: the tombstone 20 replaced the live spec 10. The agent's cursor is 15, and the store head was
// 15 when the last agent disconnected.
func TestTakesOver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(m *store.Meta, w *store.QueuedSpec, u *store.UnsentDeletion, a *store.Subscriber)
		want   bool
	}{
		"proven":                            {nil, true},
		"the cursor is at the last spec":    {func(_ *store.Meta, _ *store.QueuedSpec, _ *store.UnsentDeletion, a *store.Subscriber) { a.Cursor = 10 }, true},
		"the last agent left just before":   {func(_ *store.Meta, _ *store.QueuedSpec, _ *store.UnsentDeletion, a *store.Subscriber) { a.Sent = 19 }, true},
		"no agent since the broker started": {func(_ *store.Meta, _ *store.QueuedSpec, _ *store.UnsentDeletion, a *store.Subscriber) { a.Sent = 0 }, true},
		"the deletion was repeated": {func(m *store.Meta, _ *store.QueuedSpec, u *store.UnsentDeletion, _ *store.Subscriber) {
			m.SpecRevision, u.Last = 25, 25
		}, true},
		"an agent of OCM, or one without a state directory": {func(_ *store.Meta, _ *store.QueuedSpec, _ *store.UnsentDeletion, a *store.Subscriber) { a.Cursor = 0 }, false},
		"the agent may lack the last spec":                  {func(_ *store.Meta, _ *store.QueuedSpec, _ *store.UnsentDeletion, a *store.Subscriber) { a.Cursor = 9 }, false},
		"the agent has the deletion":                        {func(_ *store.Meta, _ *store.QueuedSpec, _ *store.UnsentDeletion, a *store.Subscriber) { a.Cursor = 20 }, false},
		"the agent has the deletion, not its repetition": {func(m *store.Meta, _ *store.QueuedSpec, u *store.UnsentDeletion, a *store.Subscriber) {
			m.SpecRevision, u.Last, a.Cursor = 25, 25, 22
		}, false},
		"an agent may have been sent it": {func(_ *store.Meta, _ *store.QueuedSpec, _ *store.UnsentDeletion, a *store.Subscriber) { a.Sent = 20 }, false},
		"an agent may have been sent it before it came again": {func(m *store.Meta, _ *store.QueuedSpec, u *store.UnsentDeletion, a *store.Subscriber) {
			m.SpecRevision, u.Last, a.Sent = 25, 25, 22
		}, false},
		"another agent is subscribed": {func(_ *store.Meta, _ *store.QueuedSpec, _ *store.UnsentDeletion, a *store.Subscriber) {
			a.Alone = false
		}, false},
		"it is from before the broker was started": {func(_ *store.Meta, _ *store.QueuedSpec, u *store.UnsentDeletion, _ *store.Subscriber) {
			*u = store.UnsentDeletion{}
		}, false},
		"it is not the one that was seen": {func(m *store.Meta, _ *store.QueuedSpec, _ *store.UnsentDeletion, _ *store.Subscriber) {
			m.SpecRevision = 21
		}, false},
		"what waits was deleted": {func(_ *store.Meta, w *store.QueuedSpec, _ *store.UnsentDeletion, _ *store.Subscriber) {
			w.Deleting = true
		}, false},
		"what waits is of another owner":   {func(_ *store.Meta, w *store.QueuedSpec, _ *store.UnsentDeletion, _ *store.Subscriber) { w.Owner = "s2" }, false},
		"the queued spec has another name": {func(_ *store.Meta, w *store.QueuedSpec, _ *store.UnsentDeletion, _ *store.Subscriber) { w.Name = "n2" }, false},
		"the queued spec has the same id": {func(_ *store.Meta, w *store.QueuedSpec, _ *store.UnsentDeletion, _ *store.Subscriber) {
			w.ResourceID = "u1"
		}, false},
		"nothing waits": {func(m *store.Meta, _ *store.QueuedSpec, _ *store.UnsentDeletion, _ *store.Subscriber) { m.Queued = nil }, false},
		"it was confirmed": {func(m *store.Meta, _ *store.QueuedSpec, _ *store.UnsentDeletion, _ *store.Subscriber) {
			m.State = store.ConfirmedTombstone
		}, false},
		"it lives again": {func(m *store.Meta, _ *store.QueuedSpec, _ *store.UnsentDeletion, _ *store.Subscriber) {
			m.State = store.Live
		}, false},
	} {
		w := &store.QueuedSpec{ResourceID: "u2", Owner: "s1", Name: "n1", Version: 1}
		m := store.Meta{Key: key("u1"), State: store.Tombstone, Owner: "s1", Name: "n1", Version: 5, SpecRevision: 20, Queued: w}
		u, a := store.UnsentDeletion{Spec: 10, First: 20, Last: 20}, store.Subscriber{Cursor: 15, Alone: true, Sent: 15}
		if c.change != nil {
			c.change(&m, w, &u, &a)
		}
		if got := store.CanReplaceTombstone(m, u, a); got != c.want {
			t.Errorf("%s: takes over: %t, want %t", name, got, c.want)
		}
	}
}

// TestUnsentDeletion_Deleted: a chain of deletions of one work that no agent was sent.
func TestUnsentDeletion_Deleted(t *testing.T) {
	t.Parallel()
	first := store.UnsentDeletion{Spec: 10, First: 20, Last: 20}
	took := func(revision, replaced uint64) store.Outcome {
		return store.Outcome{Result: store.Accepted, Revision: revision, Replaced: replaced}
	}
	for name, c := range map[string]struct {
		before store.UnsentDeletion
		met    store.DeletedRecord
		o      store.Outcome
		want   store.UnsentDeletion
	}{
		"of a live work":                 {store.UnsentDeletion{}, store.DeletedRecord{State: store.Live, Revision: 10, Unchanged: true}, took(20, 10), first},
		"of a life after that":           {first, store.DeletedRecord{State: store.Live, Revision: 30, Unchanged: true}, took(31, 30), store.UnsentDeletion{Spec: 30, First: 31, Last: 31}},
		"with another spec, as Orphan":   {store.UnsentDeletion{}, store.DeletedRecord{State: store.Live, Revision: 10}, took(20, 10), store.UnsentDeletion{}},
		"of what came in between":        {store.UnsentDeletion{}, store.DeletedRecord{State: store.Live, Revision: 9, Unchanged: true}, took(20, 10), store.UnsentDeletion{}},
		"repeated":                       {first, store.DeletedRecord{State: store.Tombstone, Revision: 20, Unchanged: true}, took(25, 20), store.UnsentDeletion{Spec: 10, First: 20, Last: 25}},
		"repeated with another spec":     {first, store.DeletedRecord{State: store.Tombstone, Revision: 20}, took(25, 20), store.UnsentDeletion{}},
		"repeated, the first is unknown": {store.UnsentDeletion{}, store.DeletedRecord{State: store.Tombstone, Revision: 20, Unchanged: true}, took(25, 20), store.UnsentDeletion{}},
		"repeated after another one":     {first, store.DeletedRecord{State: store.Tombstone, Revision: 22, Unchanged: true}, took(25, 22), store.UnsentDeletion{}},
		"of what no store had":           {store.UnsentDeletion{}, store.DeletedRecord{State: store.ConfirmedTombstone, Revision: 10, Unchanged: true}, took(20, 0), store.UnsentDeletion{}},
		"stale":                          {first, store.DeletedRecord{State: store.Tombstone, Revision: 20, Unchanged: true}, store.Outcome{Result: store.Stale, Revision: 20}, store.UnsentDeletion{}},
	} {
		if got := c.before.Deleted(c.met, c.o); got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}
