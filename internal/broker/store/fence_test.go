package store_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/storetest"
	"github.com/hawser-io/hawser/pkg/codec"
)

// TestDecide_Fence: a subscription that takes over fences the ops of earlier ones. Later ones, other sources, and ops
// without a fence go on.
func TestDecide_Fence(t *testing.T) {
	t.Parallel()
	s1, s2 := store.Scope{DataType: codec.ManifestBundles, Owner: "s1"}, store.Scope{DataType: codec.ManifestBundles, Owner: "s2"}
	on := func(of store.Scope, start uint64, id string, o store.Op) store.Op {
		o.Fence = store.FenceOf(of, start, id)
		return o
	}
	supersede := store.Op{Kind: store.Supersede}
	l := storetest.NewModel()
	for _, r := range []struct {
		name string
		op   store.Op
		want string
	}{
		{"of another source", on(s2, 0, "other", by("s2", create("u2", "n2", 5, "a"))), "accepted 1 s2"},
		{"the first takes over", on(s1, 1, "first", supersede), "accepted 2"},
		{"once more", on(s1, 1, "first", supersede), "unchanged 2"},
		{"a spec on the first", on(s1, 1, "first", create("u1", "n1", 5, "a")), "accepted 3 s1"},
		{"a spec on the second, which is later", on(s1, 2, "second", put("u1", "n1", 6, "b")), "accepted 4 s1"},
		{"a spec on another one, which is not", on(s1, 1, "third", put("u1", "n1", 7, "c")), "fenced 0"},
		{"the second takes over", on(s1, 2, "second", supersede), "accepted 5"},
		{"a late spec on the first", on(s1, 1, "first", put("u1", "n1", 7, "c")), "fenced 0"},
		{"a late release on the first", on(s1, 1, "first", admin(store.Drop, "u1", "s1")), "fenced 0"},
		{"a late bookmark on the first", on(s1, 1, "first", store.Op{Kind: store.SetBookmark, Name: "hub/s1"}), "fenced 0"},
		{"the first takes over again", on(s1, 1, "first", supersede), "fenced 0"},
		{"an op without a fence", put("u1", "n1", 7, "c"), "accepted 6 s1"},
		{"of the other source still", on(s2, 0, "other", by("s2", put("u2", "n2", 6, "b"))), "accepted 7 s2"},
		{"a spec on the second still", on(s1, 2, "second", put("u1", "n1", 8, "d")), "accepted 8 s1"},
		{"a takeover without a fence", supersede, "invalid 0 : name of the bookmark is empty"},
	} {
		s, err := l.Apply(r.op)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(r.want, outcomeString(s.Outcome)); d != "" {
			t.Errorf("%s (-want +got):\n%s", r.name, d)
		}
	}
}

// TestDecide_UnreadableFence: an op whose fence is unreadable fails.
func TestDecide_UnreadableFence(t *testing.T) {
	t.Parallel()
	l := storetest.NewModel()
	fence := store.FenceOf(store.Scope{DataType: codec.ManifestBundles, Owner: "s1"}, 1, "first")
	if _, err := l.Apply(store.Op{Kind: store.SetBookmark, Name: fence.Name, Value: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	op := create("u1", "n1", 5, "a")
	op.Fence = fence
	if s, err := l.Apply(op); err == nil {
		t.Errorf("outcome %+v", s.Outcome)
	}
}
