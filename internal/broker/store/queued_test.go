package store_test

import (
	"testing"

	"github.com/hawser-io/hawser/internal/broker/store"
)

func TestDecide_WaitingForOwnID(t *testing.T) {
	t.Parallel()
	tomb := []store.Op{create("u1", "n1", 5, "a"), del("u1", "n1", 5)}
	waits := append(append([]store.Op{}, tomb...), create("u1", "n1", 1, "b"))
	with := func(ops ...store.Op) []store.Op { return append(append([]store.Op{}, waits...), ops...) }
	b := []string{"u1 tombstone s1/n1 v5 a@2 (queued: u1 s1/n1 v1 b)"}
	runRows(t, []row{
		{name: "create waits", before: tomb, op: create("u1", "n1", 1, "b"), want: "queued 0 s1", after: b},
		{
			name: "under another name", before: tomb, op: create("u1", "n2", 1, "b"),
			want: "queued 0 s1", after: []string{"u1 tombstone s1/n1 v5 a@2 (queued: u1 s1/n2 v1 b)"},
		},
		{
			name: "under a name that is taken", before: append(append([]store.Op{}, tomb...), create("u2", "n2", 1, "x")), op: create("u1", "n2", 1, "b"),
			want: "nametaken 2 s1", after: []string{"u1 tombstone s1/n1 v5 a@2", "u2 live s1/n2 v1 x@3"},
		},
		{
			name: "the name that waits is held", before: append(append([]store.Op{}, tomb...), create("u1", "n2", 1, "b")), op: by("s2", create("u2", "n2", 1, "x")),
			want: "nametaken 0", after: []string{"u1 tombstone s1/n1 v5 a@2 (queued: u1 s1/n2 v1 b)"},
		},
		{name: "same create again", before: waits, op: create("u1", "n1", 1, "b"), want: "unchanged 0 s1", after: b},
		{
			name: "update of what waits", before: waits, op: put("u1", "n1", 2, "c"),
			want: "queued 0 s1", after: []string{"u1 tombstone s1/n1 v5 a@2 (queued: u1 s1/n1 v2 c)"},
		},
		{
			name: "update of what waits at the same version", before: waits, op: put("u1", "n1", 1, "c"),
			want: "queued 0 s1", after: []string{"u1 tombstone s1/n1 v5 a@2 (queued: u1 s1/n1 v1 c)"},
		},
		{name: "older update of what waits", before: with(put("u1", "n1", 3, "c")), op: put("u1", "n1", 2, "d"), want: "stale 0 s1" + older, after: []string{"u1 tombstone s1/n1 v5 a@2 (queued: u1 s1/n1 v3 c)"}},
		{
			name: "deletion of what waits takes it back", before: waits, op: del("u1", "n1", 1),
			want: "accepted 2 s1", after: []string{"u1 tombstone s1/n1 v5 a@2"},
		},
		{name: "repeat of the deletion before it", before: waits, op: del("u1", "n1", 5), want: "unchanged 2 s1", after: b},
		{name: "older deletion of what waits", before: with(put("u1", "n1", 3, "c")), op: del("u1", "n1", 2), want: "stale 2 s1" + older, after: []string{"u1 tombstone s1/n1 v5 a@2 (queued: u1 s1/n1 v3 c)"}},
		{
			name: "confirmed: live again, and its owner gets no Deleted status", before: waits, op: deleted("u1", 5, 1),
			want: "confirmed 3 s1", after: []string{"u1 live s1/n1 v1 b@3"}, feed: []string{"3 u1 spec s1 live"},
		},
		{
			name: "forgotten: lives", before: waits, op: admin(store.Forget, "u1", ""),
			want: "confirmed 3 s1", after: []string{"u1 live s1/n1 v1 b@3"}, feed: []string{"3 u1 spec s1 live"},
		},
		{
			name: "another id of the name takes the place", before: waits, op: create("u2", "n1", 1, "c"),
			want: "queued 0 s1", after: []string{"u1 tombstone s1/n1 v5 a@2 (queued: u2 s1/n1 v1 c)"},
		},
	})
}

// TestDecide_TombstoneOfAnEarlierOpening: the source confirms an old deletion. It publishes the deletion again, or
// the next work with its id. Then the tombstone gets a new revision.
func TestDecide_TombstoneOfAnEarlierOpening(t *testing.T) {
	t.Parallel()
	tomb := []store.Op{create("u1", "n1", 5, "a"), del("u1", "n1", 5)}
	waits := append(append([]store.Op{}, tomb...), create("u1", "n1", 1, "b"))
	again := []string{"3 u1 spec s1 tombstone"}
	runRows(t, []row{
		{
			name: "deletion again", reopened: true, before: tomb, op: del("u1", "n1", 5),
			want: "accepted 3 s1", after: []string{"u1 tombstone s1/n1 v5 a@3"}, feed: again,
		},
		{
			name: "of another source", reopened: true, before: tomb, op: by("s2", del("u1", "n1", 5)),
			want: "ownedbyother 2 s1", after: []string{"u1 tombstone s1/n1 v5 a@2"},
		},
		{
			name: "deletion before the queued spec again", reopened: true, before: waits, op: del("u1", "n1", 5),
			want: "accepted 3 s1", after: []string{"u1 tombstone s1/n1 v5 a@3 (queued: u1 s1/n1 v1 b)"}, feed: again,
		},
		{
			name: "spec is queued", reopened: true, before: tomb, op: create("u1", "n1", 1, "b"),
			want: "queued 0 s1", after: []string{"u1 tombstone s1/n1 v5 a@3 (queued: u1 s1/n1 v1 b)"}, feed: again,
		},
		{
			name: "queued spec again", reopened: true, before: waits, op: create("u1", "n1", 1, "b"),
			want: "queued 0 s1", after: []string{"u1 tombstone s1/n1 v5 a@3 (queued: u1 s1/n1 v1 b)"}, feed: again,
		},
		{
			name: "deletion of the queued spec", reopened: true, before: waits, op: del("u1", "n1", 1),
			want: "accepted 3 s1", after: []string{"u1 tombstone s1/n1 v5 a@3"}, feed: again,
		},
		{
			name: "spec of another id is queued", reopened: true, before: tomb, op: create("u2", "n1", 1, "b"),
			want: "queued 0 s1", after: []string{"u1 tombstone s1/n1 v5 a@2 (queued: u2 s1/n1 v1 b)"},
		},
		{
			name: "older deletion", reopened: true, before: tomb, op: del("u1", "n1", 4),
			want: "stale 2 s1" + older, after: []string{"u1 tombstone s1/n1 v5 a@2"},
		},
	})
}

func TestDecide_WaitingForOtherID(t *testing.T) {
	t.Parallel()
	tomb := []store.Op{create("u1", "n1", 5, "a"), del("u1", "n1", 5)}
	waits := append(append([]store.Op{}, tomb...), create("u2", "n1", 3, "b"))
	gone := append(append([]store.Op{}, waits...), del("u2", "n1", 3))
	b := []string{"u1 tombstone s1/n1 v5 a@2 (queued: u2 s1/n1 v3 b)"}
	d := []string{"u1 tombstone s1/n1 v5 a@2 (deletion waits: u2 s1/n1 v3 b)"}
	runRows(t, []row{
		{name: "create waits", before: tomb, op: create("u2", "n1", 3, "b"), want: "queued 0 s1", after: b},
		{name: "update of an unknown id waits too", before: tomb, op: put("u2", "n1", 3, "b"), want: "queued 0 s1", after: b},
		{name: "same again", before: waits, op: put("u2", "n1", 3, "b"), want: "unchanged 0 s1", after: b},
		{name: "older update", before: waits, op: put("u2", "n1", 2, "c"), want: "stale 0 s1" + older, after: b},
		{name: "newer update", before: waits, op: put("u2", "n1", 4, "c"), want: "queued 0 s1", after: []string{"u1 tombstone s1/n1 v5 a@2 (queued: u2 s1/n1 v4 c)"}},
		{name: "by another", before: waits, op: by("s2", put("u2", "n1", 4, "c")), want: "ownedbyother 2 s1", after: b},
		{name: "may not change its name meanwhile", before: waits, op: put("u2", "n2", 4, "c"), want: "nametaken 0 s1", after: b},
		{name: "has no revision that could be superseded", before: waits, op: supersedes(2, put("u2", "n1", 1, "c")), want: "conditionfailed 0", after: b},
		{name: "status of what waits", before: waits, op: status("u2", 3, 1, "x"), want: "ignored 0", after: b},
		{
			name: "first id again takes the place back", before: waits, op: create("u1", "n1", 1, "c"),
			want: "queued 0 s1", after: []string{"u1 tombstone s1/n1 v5 a@2 (queued: u1 s1/n1 v1 c)"},
		},
		{name: "late update of the first id", before: waits, op: put("u1", "n1", 6, "c"), want: "stale 2 s1" + wasDead, after: b},
		{
			name: "confirmed: confirmed tombstone and the next work", before: waits, op: deleted("u1", 5, 1),
			want: "confirmed 4 s1", after: []string{"u1 confirmed s1/n1 v5 -@3 gone5@3 v5", "u2 live s1/n1 v3 b@4"},
			feed: []string{"3 u1 status s1 confirmed", "4 u2 spec s1 live"},
		},
		{name: "deleted while it waits: the cluster may hold it", before: waits, op: del("u2", "n1", 3), want: "queued 0 s1", after: d},
		{
			name: "deleted with data while it waits", before: waits, op: delWith("u2", "n1", 3, "o"),
			want: "queued 0 s1", after: []string{"u1 tombstone s1/n1 v5 a@2 (deletion waits: u2 s1/n1 v3 o)"},
		},
		{
			name: "older deletion while it waits", before: waits, op: del("u2", "n1", 2),
			want: "stale 0 s1" + older, after: b,
		},
		{name: "late update of a waiting deletion", before: gone, op: put("u2", "n1", 3, "c"), want: "stale 0 s1" + wasDead, after: d},
		{name: "created again at a lower version", before: gone, op: create("u2", "n1", 1, "c"), want: "queued 0 s1", after: []string{"u1 tombstone s1/n1 v5 a@2 (queued: u2 s1/n1 v1 c)"}},
		{
			name: "confirmed: the next deletion", before: gone, op: deleted("u1", 5, 1),
			want: "confirmed 4 s1", after: []string{"u1 confirmed s1/n1 v5 -@3 gone5@3 v5", "u2 tombstone s1/n1 v3 b@4"},
			feed: []string{"3 u1 status s1 confirmed", "4 u2 spec s1 tombstone"},
		},
		{
			name: "a queued deletion is replaced: its owner gets the status", before: gone, op: create("u3", "n1", 1, "c"),
			want: "queued 0 s1", after: []string{"u1 tombstone s1/n1 v5 a@2 (queued: u3 s1/n1 v1 c)", "u2 confirmed s1/n1 v3 -@3 -@3 v3"},
			feed: []string{"3 u2 status s1 confirmed"},
		},
		{
			name: "the place of a waiting deletion is taken by the first id", before: gone, op: create("u1", "n1", 1, "c"),
			want: "queued 0 s1", after: []string{"u1 tombstone s1/n1 v5 a@2 (queued: u1 s1/n1 v1 c)", "u2 confirmed s1/n1 v3 -@3 -@3 v3"},
			feed: []string{"3 u2 status s1 confirmed"},
		},
		{
			name: "the first id lives again before a waiting deletion", before: gone, op: supersedes(2, put("u1", "n1", 6, "c")),
			want: "accepted 4 s1", after: []string{"u1 live s1/n1 v6 c@4", "u2 confirmed s1/n1 v3 -@3 -@3 v3"},
			feed: []string{"3 u2 status s1 confirmed", "4 u1 spec s1 live"},
		},
		{
			name: "the first id lives again under another name: nothing to wait for", before: waits, op: supersedes(2, put("u1", "n2", 6, "c")),
			want: "accepted 4 s1", after: []string{"u1 live s1/n2 v6 c@3", "u2 live s1/n1 v3 b@4"},
			feed: []string{"3 u1 spec s1 live", "4 u2 spec s1 live"},
		},
		{
			name: "two names behind one tombstone: the second has to come again", before: waits, op: create("u1", "n2", 1, "c"),
			want: "nametaken 0 s1", after: b,
		},
		{
			name:   "a confirmed tombstone of the queued id is renewed when the queued spec is replaced",
			before: append(append([]store.Op{create("u2", "n0", 1, "x"), del("u2", "n0", 1), deleted("u2", 1, 1)}, tomb...), create("u2", "n1", 3, "b"), del("u2", "n1", 3)),
			op:     create("u3", "n1", 1, "c"),
			want:   "queued 0 s1", after: []string{"u1 tombstone s1/n1 v5 a@5 (queued: u3 s1/n1 v1 c)", "u2 confirmed s1/n0 v3 -@6 gone1@6 v1"},
			feed: []string{"6 u2 status s1 confirmed"},
		},
		{
			name: "a confirmed tombstone of the queued id is replaced by it", before: append(append([]store.Op{create("u2", "n0", 1, "x"), del("u2", "n0", 1), deleted("u2", 1, 7)}, tomb...), create("u2", "n1", 3, "b")),
			op:   deleted("u1", 5, 1),
			want: "confirmed 7 s1", after: []string{"u1 confirmed s1/n1 v5 -@6 gone5@6 v5", "u2 live s1/n1 v3 b@7"},
			feed: []string{"6 u1 status s1 confirmed", "7 u2 spec s1 live"},
		},
		{
			name: "new deletion of the first id leaves what waits", before: waits, op: del("u1", "n1", 6),
			want: "accepted 3 s1", after: []string{"u1 tombstone s1/n1 v6 a@3 (queued: u2 s1/n1 v3 b)"}, feed: []string{"3 u1 spec s1 tombstone"},
		},
	})
}

func TestDecide_WaitingWithoutCluster(t *testing.T) {
	t.Parallel()
	// No agent subscribed, so only the status makes the deletion a tombstone.
	tomb := []store.Op{create("u1", "n1", 5, "a"), status("u1", 5, 1, "x"), del("u1", "n1", 5)}
	waits := append(append([]store.Op{}, tomb...), create("u2", "n1", 3, "b"))
	runRows(t, []row{
		{
			name: "deletion of what waits confirms itself", noAgentEver: true, before: waits, op: del("u2", "n1", 3),
			want:  "confirmed 4 s1",
			after: []string{"u1 tombstone s1/n1 v5 a@3 x@2 v5", "u2 confirmed s1/n1 v3 -@4 -@4 v3"}, feed: []string{"4 u2 status s1 confirmed"},
		},
		{
			name: "the waiting deletion of a cluster that left confirms itself, after the one before", left: true,
			before: append(append([]store.Op{}, waits...), del("u2", "n1", 3)), op: admin(store.Forget, "u1", ""),
			want: "confirmed 5 s1", after: []string{"u1 confirmed s1/n1 v5 -@4 -@4 v5", "u2 confirmed s1/n1 v3 -@5 -@5 v3"},
			feed: []string{"4 u1 status s1 confirmed", "5 u2 status s1 confirmed"},
		},
		{
			name: "a repeated deletion of a cluster that left, without a status", left: true,
			before: []store.Op{create("u1", "n1", 5, "a"), del("u1", "n1", 5), create("u2", "n1", 3, "b")}, op: del("u1", "n1", 6),
			want: "confirmed 4 s1", after: []string{"u1 confirmed s1/n1 v6 -@3 -@3 v6", "u2 live s1/n1 v3 b@4"},
			feed: []string{"3 u1 status s1 confirmed", "4 u2 spec s1 live"},
		},
		{
			name: "deletion of an unknown id of the name confirms itself", noAgentEver: true, before: tomb, op: del("u2", "n1", 3),
			want:  "confirmed 4 s1",
			after: []string{"u1 tombstone s1/n1 v5 a@3 x@2 v5", "u2 confirmed s1/n1 v3 -@4 -@4 v3"}, feed: []string{"4 u2 status s1 confirmed"},
		},
	})
}
