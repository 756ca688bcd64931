package store_test

import (
	"testing"

	"github.com/hawser-io/hawser/internal/broker/store"
)

func TestDecide_Acked(t *testing.T) {
	t.Parallel()
	live := []store.Op{create("u1", "n1", 5, "a")}
	confirmed := append(append([]store.Op{}, live...), del("u1", "n1", 5), deleted("u1", 5, 1))
	g := []string{"u1 confirmed s1/n1 v5 -@3 gone5@3 v5"}
	runRows(t, []row{
		{name: "removes the confirmed tombstone", before: confirmed, op: admin(store.CollectTombstone, "u1", "s1"), want: "accepted 4", feed: []string{"4 u1 status s1 gone"}},
		{name: "of what was seen", before: confirmed, op: ifRevision(3, admin(store.CollectTombstone, "u1", "s1")), want: "accepted 4", feed: []string{"4 u1 status s1 gone"}},
		{name: "of all up to a later revision", before: confirmed, op: ifRevision(9, admin(store.CollectTombstone, "u1", "s1")), want: "accepted 4", feed: []string{"4 u1 status s1 gone"}},
		{name: "of an earlier confirmed tombstone", before: confirmed, op: ifRevision(2, admin(store.CollectTombstone, "u1", "s1")), want: "ignored 3 s1", after: g},
		{name: "by another", before: confirmed, op: admin(store.CollectTombstone, "u1", "s2"), want: "ownedbyother 3 s1", after: g},
		{name: "of a live record", before: live, op: admin(store.CollectTombstone, "u1", "s1"), want: "ignored 0 s1", after: []string{"u1 live s1/n1 v5 a@1"}},
		{name: "of nothing", op: admin(store.CollectTombstone, "u1", "s1"), want: "ignored 0"},
	})
}

func TestDecide_Forget(t *testing.T) {
	t.Parallel()
	live := []store.Op{create("u1", "n1", 5, "a"), status("u1", 5, 1, "x")}
	with := func(ops ...store.Op) []store.Op { return append(append([]store.Op{}, live...), ops...) }
	final := admin(store.Forget, "u1", "")
	final.Event = []byte("final")
	runRows(t, []row{
		{
			name: "live", before: live, op: admin(store.Forget, "u1", ""),
			want: "confirmed 3 s1", after: []string{"u1 confirmed s1/n1 v5 -@3 -@3 v5"}, feed: []string{"3 u1 status s1 confirmed"},
		},
		{
			name: "live, with a final status", before: live, op: final,
			want: "confirmed 3 s1", after: []string{"u1 confirmed s1/n1 v5 -@3 final@3 v5"}, feed: []string{"3 u1 status s1 confirmed"},
		},
		{
			name: "tombstone", before: with(del("u1", "n1", 6)), op: admin(store.Forget, "u1", ""),
			want: "confirmed 4 s1", after: []string{"u1 confirmed s1/n1 v6 -@4 -@4 v6"}, feed: []string{"4 u1 status s1 confirmed"},
		},
		{
			name: "tombstone before another id", before: with(del("u1", "n1", 6), create("u2", "n1", 1, "b")), op: admin(store.Forget, "u1", ""),
			want: "confirmed 5 s1", after: []string{"u1 confirmed s1/n1 v6 -@4 -@4 v6", "u2 live s1/n1 v1 b@5"},
			feed: []string{"4 u1 status s1 confirmed", "5 u2 spec s1 live"},
		},
		{
			name: "what waits", before: with(del("u1", "n1", 6), create("u2", "n1", 1, "b")), op: admin(store.Forget, "u2", ""),
			want: "confirmed 4 s1", after: []string{"u1 tombstone s1/n1 v6 a@3 x@2 v5", "u2 confirmed s1/n1 v1 -@4 -@4 v1"},
			feed: []string{"4 u2 status s1 confirmed"},
		},
		{name: "confirmed", before: with(del("u1", "n1", 6), deleted("u1", 6, 2)), op: admin(store.Forget, "u1", ""), want: "accepted 5", feed: []string{"5 u1 status s1 gone"}},
		{name: "nothing", op: admin(store.Forget, "u1", ""), want: "ignored 0"},
	})
}

func TestDecide_Drop(t *testing.T) {
	t.Parallel()
	live := []store.Op{create("u1", "n1", 5, "a")}
	with := func(ops ...store.Op) []store.Op { return append(append([]store.Op{}, live...), ops...) }
	waits := with(del("u1", "n1", 5), create("u2", "n1", 1, "b"))
	runRows(t, []row{
		{name: "live", before: live, op: admin(store.Drop, "u1", "s1"), want: "accepted 2", feed: []string{"2 u1 spec s1 gone"}},
		{name: "live, of any owner", before: live, op: admin(store.Drop, "u1", ""), want: "accepted 2", feed: []string{"2 u1 spec s1 gone"}},
		{
			name: "with a status", before: with(status("u1", 5, 1, "x")), op: admin(store.Drop, "u1", "s1"),
			want: "accepted 4", feed: []string{"3 u1 spec s1 gone", "4 u1 status s1 gone"},
		},
		{name: "of another", before: live, op: admin(store.Drop, "u1", "s2"), want: "ownedbyother 1 s1", after: []string{"u1 live s1/n1 v5 a@1"}},
		{name: "tombstone with what waits", before: waits, op: admin(store.Drop, "u1", "s1"), want: "accepted 3", feed: []string{"3 u1 spec s1 gone"}},
		{name: "what waits", before: waits, op: admin(store.Drop, "u2", "s1"), want: "accepted 2", after: []string{"u1 tombstone s1/n1 v5 a@2"}},
		{name: "what waits of another", before: waits, op: admin(store.Drop, "u2", "s2"), want: "ownedbyother 2 s1", after: []string{"u1 tombstone s1/n1 v5 a@2 (queued: u2 s1/n1 v1 b)"}},
		{name: "confirmed", before: with(del("u1", "n1", 5), deleted("u1", 5, 1)), op: admin(store.Drop, "u1", "s1"), want: "accepted 4", feed: []string{"4 u1 status s1 gone"}},
		{name: "nothing", op: admin(store.Drop, "u1", "s1"), want: "ignored 0"},
	})
}

func TestDecide_Adopt(t *testing.T) {
	t.Parallel()
	live := []store.Op{create("u1", "n1", 5, "a")}
	with := func(ops ...store.Op) []store.Op { return append(append([]store.Op{}, live...), ops...) }
	runRows(t, []row{
		{name: "live", before: live, op: admin(store.Transfer, "u1", "s2"), want: "accepted 2 s2", after: []string{"u1 live s2/n1 v5 a@2"}, feed: []string{"2 u1 spec s2 live"}},
		{
			name: "with a status", before: with(status("u1", 5, 1, "x")), op: admin(store.Transfer, "u1", "s2"),
			want: "accepted 4 s2", after: []string{"u1 live s2/n1 v5 a@3 x@4 v5"}, feed: []string{"3 u1 spec s2 live", "4 u1 status s2 live"},
		},
		{
			name: "with what waits", before: with(del("u1", "n1", 5), create("u2", "n1", 1, "b")), op: admin(store.Transfer, "u1", "s2"),
			want: "accepted 3 s2", after: []string{"u1 tombstone s2/n1 v5 a@3 (queued: u2 s2/n1 v1 b)"}, feed: []string{"3 u1 spec s2 tombstone"},
		},
		{
			name:   "with a queued spec and its confirmed tombstone",
			before: append([]store.Op{create("u2", "n0", 1, "x"), del("u2", "n0", 1), deleted("u2", 1, 1)}, with(del("u1", "n1", 5), create("u2", "n1", 1, "b"))...),
			op:     admin(store.Transfer, "u1", "s2"), want: "accepted 7 s2",
			after: []string{"u1 tombstone s2/n1 v5 a@7 (queued: u2 s2/n1 v1 b)", "u2 confirmed s2/n0 v1 -@3 gone1@6 v1"},
			feed:  []string{"6 u2 status s2 confirmed", "7 u1 spec s2 tombstone"},
		},
		{
			name: "confirmed", before: with(del("u1", "n1", 5), deleted("u1", 5, 1)), op: admin(store.Transfer, "u1", "s2"),
			want: "accepted 4 s2", after: []string{"u1 confirmed s2/n1 v5 -@3 gone5@4 v5"}, feed: []string{"4 u1 status s2 confirmed"},
		},
		{name: "by its owner", before: live, op: admin(store.Transfer, "u1", "s1"), want: "unchanged 1 s1", after: []string{"u1 live s1/n1 v5 a@1"}},
		{
			name: "what waits", before: with(del("u1", "n1", 5), create("u2", "n1", 1, "b")), op: admin(store.Transfer, "u2", "s2"),
			want: "ignored 0", after: []string{"u1 tombstone s1/n1 v5 a@2 (queued: u2 s1/n1 v1 b)"},
		},
		{name: "nothing", op: admin(store.Transfer, "u1", "s2"), want: "ignored 0"},
	})
}

func TestDecide_Invalid(t *testing.T) {
	t.Parallel()
	edit := func(f func(o *store.Op)) store.Op { o := create("u1", "n1", 5, "a"); f(&o); return o }
	long := make([]byte, 1025)
	for i := range long {
		long[i] = 'x'
	}
	runRows(t, []row{
		{name: "no kind", op: edit(func(o *store.Op) { o.Kind = 0 }), want: "invalid 0 : unknown kind 0"},
		{name: "unknown kind", op: edit(func(o *store.Op) { o.Kind = 99 }), want: "invalid 0 : unknown kind 99"},
		{name: "no group", op: edit(func(o *store.Op) { o.Key.DataType.Group = "" }), want: "invalid 0 : group of the data type is empty"},
		{name: "no version of the type", op: edit(func(o *store.Op) { o.Key.DataType.Version = "" }), want: "invalid 0 : version of the data type is empty"},
		{name: "no resource", op: edit(func(o *store.Op) { o.Key.DataType.Resource = "" }), want: "invalid 0 : resource of the data type is empty"},
		{name: "no cluster", op: edit(func(o *store.Op) { o.Key.Cluster = "" }), want: "invalid 0 : cluster is empty"},
		{name: "no id", op: edit(func(o *store.Op) { o.Key.ResourceID = "" }), want: "invalid 0 : resource id is empty"},
		{name: "zero byte in the id", op: edit(func(o *store.Op) { o.Key.ResourceID = "a\x00b" }), want: "invalid 0 : resource id contains a zero byte"},
		{name: "zero byte in the name", op: edit(func(o *store.Op) { o.Name = "a\x00b" }), want: "invalid 0 : name contains a zero byte"},
		{name: "zero byte in the owner", op: edit(func(o *store.Op) { o.Owner = "a\x00b" }), want: "invalid 0 : owner contains a zero byte"},
		{name: "long cluster", op: edit(func(o *store.Op) { o.Key.Cluster = string(long) }), want: "invalid 0 : cluster is longer than 1024 bytes"},
		{name: "no owner", op: edit(func(o *store.Op) { o.Owner = "" }), want: "invalid 0 : owner is empty"},
		{name: "negative version", op: edit(func(o *store.Op) { o.Version = -1 }), want: "invalid 0 : version is negative"},
		{name: "no event", op: edit(func(o *store.Op) { o.Event = nil }), want: "invalid 0 : event is empty"},
		{name: "status without an event", op: edit(func(o *store.Op) { o.Kind, o.Event = store.PutStatus, nil }), want: "invalid 0 : event is empty"},
		{name: "long hash", op: edit(func(o *store.Op) { o.StatusHash = string(long) }), want: "invalid 0 : status hash is longer than 1024 bytes"},
		{name: "long sequence id", op: edit(func(o *store.Op) { o.Sequence = string(long) }), want: "invalid 0 : sequence id is longer than 1024 bytes"},
	})
}
