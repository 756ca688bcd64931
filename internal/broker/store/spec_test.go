package store_test

import (
	"testing"

	"github.com/hawser-io/hawser/internal/broker/store"
)

const (
	older   = ": a newer version is stored"
	wasDead = ": the work was deleted"
)

func TestDecide_SpecOfLiveRecord(t *testing.T) {
	t.Parallel()
	live := []store.Op{create("u1", "n1", 5, "a")}
	with := func(ops ...store.Op) []store.Op { return append(append([]store.Op{}, live...), ops...) }
	a := []string{"u1 live s1/n1 v5 a@1"}
	runRows(t, []row{
		{
			name: "first", op: create("u1", "n1", 5, "a"),
			want: "accepted 1 s1", after: a, feed: []string{"1 u1 spec s1 live"},
		},
		{
			name: "first is an update, after a loss of the store", op: put("u1", "n1", 5, "a"),
			want: "accepted 1 s1", after: a, feed: []string{"1 u1 spec s1 live"},
		},
		{
			name: "without a name it is held under its id", op: create("u1", "", 5, "a"),
			want: "accepted 1 s1", after: []string{"u1 live s1/u1 v5 a@1"}, feed: []string{"1 u1 spec s1 live"},
		},
		{
			name: "higher version wins", before: live, op: put("u1", "n1", 6, "b"),
			want: "accepted 2 s1", after: []string{"u1 live s1/n1 v6 b@2"}, feed: []string{"2 u1 spec s1 live"},
		},
		{
			name: "same version with another tag: arrival wins", before: live, op: put("u1", "n1", 5, "b"),
			want: "accepted 2 s1", after: []string{"u1 live s1/n1 v5 b@2"}, feed: []string{"2 u1 spec s1 live"},
		},
		{
			name: "version 0: arrival wins", before: live, op: put("u1", "n1", 0, "b"),
			want: "accepted 2 s1", after: []string{"u1 live s1/n1 v0 b@2 over v5"}, feed: []string{"2 u1 spec s1 live"},
		},
		{
			name: "any version over version 0", before: []store.Op{create("u1", "n1", 0, "a")}, op: put("u1", "n1", 3, "b"),
			want: "accepted 2 s1", after: []string{"u1 live s1/n1 v3 b@2"}, feed: []string{"2 u1 spec s1 live"},
		},
		{name: "same tag", before: live, op: put("u1", "n1", 5, "a"), want: "unchanged 1 s1", after: a},
		{name: "lower version", before: live, op: put("u1", "n1", 4, "b"), want: "stale 1 s1" + older, after: a},
		{name: "create again at a lower version", before: live, op: create("u1", "n1", 4, "b"), want: "stale 1 s1" + older, after: a},
		{name: "other owner", before: live, op: by("s2", put("u1", "n1", 9, "b")), want: "ownedbyother 1 s1", after: a},
		{name: "other owner's name", before: live, op: by("s2", create("u2", "n1", 9, "b")), want: "nametaken 0", after: a},
		{
			name: "new id under a live name replaces without a deletion", before: with(status("u1", 5, 1, "x")), op: create("u2", "n1", 1, "b"),
			want: "accepted 5 s1", after: []string{"u2 live s1/n1 v1 b@5"},
			feed: []string{"3 u1 spec s1 gone", "4 u1 status s1 gone", "5 u2 spec s1 live"},
		},
		{
			name: "renamed", before: live, op: put("u1", "n2", 6, "b"),
			want: "accepted 2 s1", after: []string{"u1 live s1/n2 v6 b@2"}, feed: []string{"2 u1 spec s1 live"},
		},
		{
			name: "renamed onto a live name", before: with(create("u2", "n2", 1, "x")), op: put("u1", "n2", 6, "b"),
			want: "nametaken 1 s1", after: []string{"u1 live s1/n1 v5 a@1", "u2 live s1/n2 v1 x@2"},
		},
		{
			name: "renamed onto a tombstone's name", before: with(create("u2", "n2", 1, "x"), del("u2", "n2", 1)), op: put("u1", "n2", 6, "b"),
			want: "nametaken 1 s1", after: []string{"u1 live s1/n1 v5 a@1", "u2 tombstone s1/n2 v1 x@3"},
		},
		{
			name: "status survives a new spec", before: with(status("u1", 5, 1, "x")), op: put("u1", "n1", 6, "b"),
			want: "accepted 3 s1", after: []string{"u1 live s1/n1 v6 b@3 x@2 v5"}, feed: []string{"3 u1 spec s1 live"},
		},
	})
}

func TestDecide_Conditions(t *testing.T) {
	t.Parallel()
	live := []store.Op{create("u1", "n1", 5, "a")}
	a := []string{"u1 live s1/n1 v5 a@1"}
	tomb := append(append([]store.Op{}, live...), del("u1", "n1", 5))
	back := append(append([]store.Op{}, live...), supersedes(1, put("u1", "n1", 3, "b")))
	runRows(t, []row{
		{
			name: "supersedes wins over a higher version", before: live, op: supersedes(1, put("u1", "n1", 3, "b")),
			want: "accepted 2 s1", after: []string{"u1 live s1/n1 v3 b@2 over v5"}, feed: []string{"2 u1 spec s1 live"},
		},
		{
			name: "supersedes with a higher version is an update", before: live, op: supersedes(1, put("u1", "n1", 6, "b")),
			want: "accepted 2 s1", after: []string{"u1 live s1/n1 v6 b@2"}, feed: []string{"2 u1 spec s1 live"},
		},
		{
			name: "versions up to the superseded one still go out unversioned", before: back, op: put("u1", "n1", 5, "c"),
			want: "accepted 3 s1", after: []string{"u1 live s1/n1 v5 c@3 over v5"}, feed: []string{"3 u1 spec s1 live"},
		},
		{
			name: "a version above the superseded one ends it", before: back, op: put("u1", "n1", 6, "c"),
			want: "accepted 3 s1", after: []string{"u1 live s1/n1 v6 c@3"}, feed: []string{"3 u1 spec s1 live"},
		},
		{
			name: "superseded twice keeps the highest", before: back, op: supersedes(2, put("u1", "n1", 2, "c")),
			want: "accepted 3 s1", after: []string{"u1 live s1/n1 v2 c@3 over v5"}, feed: []string{"3 u1 spec s1 live"},
		},
		{name: "supersedes another revision", before: live, op: supersedes(9, put("u1", "n1", 6, "b")), want: "conditionfailed 1 s1", after: a},
		{name: "supersedes what is not there", op: supersedes(9, put("u1", "n1", 6, "b")), want: "conditionfailed 0"},
		{name: "supersedes the record of another", before: live, op: by("s2", supersedes(1, put("u1", "n1", 6, "b"))), want: "conditionfailed 0", after: a},
		{name: "deletes the record of another on a condition", before: live, op: by("s2", ifRevision(1, del("u1", "n1", 6))), want: "conditionfailed 0", after: a},
		{name: "deletes what is not there on a condition", op: by("s2", ifRevision(1, del("u1", "n1", 6))), want: "conditionfailed 0"},
		{name: "deletes the record of another where it may have none", before: live, op: beyond(by("s2", del("u1", "n1", 6))), want: "ignored 0", after: a},
		{name: "deletes what is not there where it may have none", op: beyond(by("s2", del("u1", "n1", 6))), want: "ignored 0"},
		{
			name: "deletes its own where it may have none any more", before: live, op: beyond(del("u1", "n1", 6)),
			want: "accepted 2 s1", after: []string{"u1 tombstone s1/n1 v6 a@2"}, feed: []string{"2 u1 spec s1 tombstone"},
		},
		{
			name: "supersedes a tombstone: the work lives", before: tomb, op: supersedes(2, put("u1", "n1", 3, "b")),
			want: "accepted 3 s1", after: []string{"u1 live s1/n1 v3 b@3 over v5"}, feed: []string{"3 u1 spec s1 live"},
		},
		{
			name: "supersedes a tombstone before which a create waits", before: append(append([]store.Op{}, tomb...), create("u1", "n1", 1, "w")), op: supersedes(2, put("u1", "n1", 6, "b")),
			want: "accepted 3 s1", after: []string{"u1 live s1/n1 v6 b@3"}, feed: []string{"3 u1 spec s1 live"},
		},
		{
			name: "supersedes a confirmed tombstone", before: append(append([]store.Op{}, tomb...), deleted("u1", 5, 1)), op: supersedes(3, put("u1", "n1", 3, "b")),
			want: "accepted 4 s1", after: []string{"u1 live s1/n1 v3 b@4 over v5"}, feed: []string{"4 u1 spec s1 live"},
		},
		{
			name: "deletion if the revision is seen, whatever the version", before: live, op: ifRevision(1, del("u1", "n1", 2)),
			want: "accepted 2 s1", after: []string{"u1 tombstone s1/n1 v2 a@2 over v5"}, feed: []string{"2 u1 spec s1 tombstone"},
		},
		{name: "deletion if another revision", before: live, op: ifRevision(2, del("u1", "n1", 5)), want: "conditionfailed 1 s1", after: a},
		{name: "deletion if of nothing", op: ifRevision(2, del("u1", "n1", 5)), want: "conditionfailed 0"},
		{name: "spec if another revision", before: live, op: ifRevision(2, put("u1", "n1", 6, "b")), want: "conditionfailed 1 s1", after: a},
		{name: "spec if the revision is seen obeys the versions", before: live, op: ifRevision(1, put("u1", "n1", 4, "b")), want: "stale 1 s1" + older, after: a},
	})
}

func TestDecide_Deletion(t *testing.T) {
	t.Parallel()
	live := []store.Op{create("u1", "n1", 5, "a")}
	tomb := append(append([]store.Op{}, live...), del("u1", "n1", 5))
	a := []string{"u1 live s1/n1 v5 a@1"}
	dead := []string{"u1 tombstone s1/n1 v5 a@2"}
	runRows(t, []row{
		{
			name: "at the same version, without data: keeps the spec", before: live, op: del("u1", "n1", 5),
			want: "accepted 2 s1", after: dead, feed: []string{"2 u1 spec s1 tombstone"},
		},
		{
			name: "at a higher version, with data: its data is the spec", before: live, op: delWith("u1", "n1", 6, "orphan"),
			want: "accepted 2 s1", after: []string{"u1 tombstone s1/n1 v6 orphan@2"}, feed: []string{"2 u1 spec s1 tombstone"},
		},
		{
			name: "at version 0", before: live, op: del("u1", "n1", 0),
			want: "accepted 2 s1", after: []string{"u1 tombstone s1/n1 v0 a@2 over v5"}, feed: []string{"2 u1 spec s1 tombstone"},
		},
		{name: "at a lower version", before: live, op: del("u1", "n1", 4), want: "stale 1 s1" + older, after: a},
		{name: "by another", before: live, op: by("s2", del("u1", "n1", 5)), want: "ownedbyother 1 s1", after: a},
		{
			name: "without data it keeps the name too", before: live, op: del("u1", "n9", 5),
			want: "accepted 2 s1", after: dead, feed: []string{"2 u1 spec s1 tombstone"},
		},
		{
			name: "with the data of another name that is taken", before: append(append([]store.Op{}, live...), by("s2", create("u2", "n2", 1, "x"))), op: delWith("u1", "n2", 6, "b"),
			want: "nametaken 1 s1", after: []string{"u1 live s1/n1 v5 a@1", "u2 live s2/n2 v1 x@2"},
		},
		{
			name: "status stays", before: append(append([]store.Op{}, live...), status("u1", 5, 1, "x")), op: del("u1", "n1", 5),
			want: "accepted 3 s1", after: []string{"u1 tombstone s1/n1 v5 a@3 x@2 v5"}, feed: []string{"3 u1 spec s1 tombstone"},
		},
		{
			name: "no agent ever subscribed: confirms itself", noAgentEver: true, before: live, op: del("u1", "n1", 5),
			want: "confirmed 2 s1", after: []string{"u1 confirmed s1/n1 v5 -@2 -@2 v5"}, feed: []string{"2 u1 status s1 confirmed"},
		},
		{
			name: "no agent subscribed, but there is a status", noAgentEver: true, before: append(append([]store.Op{}, live...), status("u1", 5, 1, "x")), op: del("u1", "n1", 5),
			want: "accepted 3 s1", after: []string{"u1 tombstone s1/n1 v5 a@3 x@2 v5"}, feed: []string{"3 u1 spec s1 tombstone"},
		},
		{
			name: "no agent subscribed, but its source has a status", noAgentEver: true, before: live, op: reported(del("u1", "n1", 5)),
			want: "accepted 2 s1", after: dead, feed: []string{"2 u1 spec s1 tombstone"},
		},
		{name: "again", before: tomb, op: del("u1", "n1", 5), want: "unchanged 2 s1", after: dead},
		{
			name: "again with data", before: tomb, op: delWith("u1", "n1", 5, "orphan"),
			want: "accepted 3 s1", after: []string{"u1 tombstone s1/n1 v5 orphan@3"}, feed: []string{"3 u1 spec s1 tombstone"},
		},
		{name: "again at a lower version", before: tomb, op: del("u1", "n1", 4), want: "stale 2 s1" + older, after: dead},
		{name: "then an update", before: tomb, op: put("u1", "n1", 6, "b"), want: "stale 2 s1" + wasDead, after: dead},
		{name: "then a resync answer", before: tomb, op: func() store.Op { o := put("u1", "n1", 6, "b"); o.Action = "resync_response"; return o }(), want: "stale 2 s1" + wasDead, after: dead},
		{name: "then a create by another", before: tomb, op: by("s2", create("u1", "n1", 6, "b")), want: "ownedbyother 2 s1", after: dead},
		{name: "then another's create of the name", before: tomb, op: by("s2", create("u2", "n1", 6, "b")), want: "nametaken 0", after: dead},
	})
}

func reported(o store.Op) store.Op {
	o.Reported = true
	return o
}

func TestDecide_DeletionOfUnknown(t *testing.T) {
	t.Parallel()
	runRows(t, []row{
		{
			name: "the cluster may hold it", op: delWith("u1", "n1", 5, "a"),
			want: "accepted 1 s1", after: []string{"u1 tombstone s1/n1 v5 a@1"}, feed: []string{"1 u1 spec s1 tombstone"},
		},
		{
			name: "without data there is no spec", op: del("u1", "n1", 5),
			want: "accepted 1 s1", after: []string{"u1 tombstone s1/n1 v5 -@1"}, feed: []string{"1 u1 spec s1 tombstone"},
		},
		{
			name: "no agent ever subscribed", noAgentEver: true, op: del("u1", "n1", 5),
			want: "confirmed 1 s1", after: []string{"u1 confirmed s1/n1 v5 -@1 -@1 v5"}, feed: []string{"1 u1 status s1 confirmed"},
		},
		{
			name: "no agent subscribed, but its source has a status", noAgentEver: true, op: reported(del("u1", "n1", 5)),
			want: "accepted 1 s1", after: []string{"u1 tombstone s1/n1 v5 -@1"}, feed: []string{"1 u1 spec s1 tombstone"},
		},
		{
			name: "its name is live under another id: a deletion would hit that", before: []store.Op{create("u2", "n1", 1, "b")}, op: del("u1", "n1", 5),
			want: "confirmed 2 s1", after: []string{"u1 confirmed s1/n1 v5 -@2 -@2 v5", "u2 live s1/n1 v1 b@1"}, feed: []string{"2 u1 status s1 confirmed"},
		},
		// Scenario:
		//   t1: the cluster reports on u1 under the name, and the store is restored to an earlier state.
		//   t2: in this state the name belongs to u2, which existed before u1; the source deletes u1.
		// Result: the deletion waits until u2 is gone, because the cluster has u1 under the name.
		{
			name: "the same, but the cluster had the work: the name was its own", before: []store.Op{create("u2", "n1", 1, "b")}, op: reported(del("u1", "n1", 5)),
			want: "conditionfailed 0", after: []string{"u2 live s1/n1 v1 b@1"},
		},
		{
			name:   "the same, and the name is promised",
			before: []store.Op{create("u2", "n1", 1, "b"), del("u2", "n1", 1), create("u3", "n1", 1, "c")}, op: reported(del("u1", "n1", 5)),
			want: "conditionfailed 0", after: []string{"u2 tombstone s1/n1 v1 b@2 (queued: u3 s1/n1 v1 c)"},
		},
		{
			name: "the cluster had the work, under a name that is a tombstone's now", before: []store.Op{create("u2", "n1", 1, "b"), del("u2", "n1", 1)}, op: reported(del("u1", "n1", 5)),
			want: "queued 0 s1", after: []string{"u2 tombstone s1/n1 v1 b@2 (deletion waits: u1 s1/n1 v5 -)"},
		},
		{
			name: "its name is another's", before: []store.Op{by("s2", create("u2", "n1", 1, "b"))}, op: del("u1", "n1", 5),
			want: "confirmed 2 s1", after: []string{"u1 confirmed s1/n1 v5 -@2 -@2 v5", "u2 live s2/n1 v1 b@1"}, feed: []string{"2 u1 status s1 confirmed"},
		},
		// Scenario:
		//   t1: a cluster has u1, and the store is lost.
		//   t2: another source publishes first: the deletion of its work u2 with the same name.
		//   t3: u1 is deleted.
		// Result: the deletion of u1 is not confirmed, because the cluster may have u1 under the name and has not
		// reported on u2.
		{
			name:   "its name is a tombstone's of another: it may be this work's there",
			before: []store.Op{by("s2", reported(del("u2", "n1", 1)))}, op: del("u1", "n1", 5),
			want: "conditionfailed 0", after: []string{"u2 tombstone s2/n1 v1 -@1"},
		},
		{
			name:   "the same of one that was live here",
			before: []store.Op{by("s2", create("u2", "n1", 1, "b")), by("s2", del("u2", "n1", 1))}, op: del("u1", "n1", 5),
			want: "conditionfailed 0", after: []string{"u2 tombstone s2/n1 v1 b@2"},
		},
		{
			name:   "the same of one that the cluster had: the store may have gone back to before it was confirmed",
			before: []store.Op{by("s2", create("u2", "n1", 1, "b")), status("u2", 1, 1, "x"), by("s2", del("u2", "n1", 1))}, op: del("u1", "n1", 5),
			want: "conditionfailed 0", after: []string{"u2 tombstone s2/n1 v1 b@3 x@2 v1"},
		},
		{
			name: "its name is a tombstone's: one after the other", before: []store.Op{create("u2", "n1", 1, "b"), del("u2", "n1", 1)}, op: del("u1", "n1", 5),
			want: "queued 0 s1", after: []string{"u2 tombstone s1/n1 v1 b@2 (deletion waits: u1 s1/n1 v5 -)"},
		},
		{
			name: "its name is a tombstone's and promised", before: []store.Op{create("u2", "n1", 1, "b"), del("u2", "n1", 1), create("u3", "n1", 1, "c")}, op: del("u1", "n1", 5),
			want: "confirmed 3 s1", after: []string{"u1 confirmed s1/n1 v5 -@3 -@3 v5", "u2 tombstone s1/n1 v1 b@2 (queued: u3 s1/n1 v1 c)"}, feed: []string{"3 u1 status s1 confirmed"},
		},
	})
}

func TestDecide_SpecOfConfirmedTombstone(t *testing.T) {
	t.Parallel()
	confirmed := []store.Op{create("u1", "n1", 5, "a"), del("u1", "n1", 5), deleted("u1", 5, 1)}
	with := func(ops ...store.Op) []store.Op { return append(append([]store.Op{}, confirmed...), ops...) }
	g := []string{"u1 confirmed s1/n1 v5 -@3 gone5@3 v5"}
	runRows(t, []row{
		{
			name: "create lives again", before: confirmed, op: create("u1", "n1", 1, "b"),
			want: "accepted 4 s1", after: []string{"u1 live s1/n1 v1 b@4"}, feed: []string{"4 u1 spec s1 live"},
		},
		{name: "late update", before: confirmed, op: put("u1", "n1", 5, "b"), want: "stale 3 s1" + wasDead, after: g},
		{name: "late update without a version", before: confirmed, op: put("u1", "n1", 0, "b"), want: "stale 3 s1" + wasDead, after: g},
		{
			name: "update to a version that the deletion did not know", before: confirmed, op: put("u1", "n1", 6, "b"),
			want: "accepted 4 s1", after: []string{"u1 live s1/n1 v6 b@4"}, feed: []string{"4 u1 spec s1 live"},
		},
		{name: "create by another", before: confirmed, op: by("s2", create("u1", "n1", 1, "b")), want: "ownedbyother 3 s1", after: g},
		{
			name: "its name is free for others", before: confirmed, op: by("s2", create("u2", "n1", 1, "b")),
			want: "accepted 4 s2", after: append(append([]string{}, g...), "u2 live s2/n1 v1 b@4"), feed: []string{"4 u2 spec s2 live"},
		},
		{
			name: "create under a live name replaces", before: with(create("u2", "n1", 1, "x")), op: create("u1", "n1", 1, "b"),
			want: "accepted 6 s1", after: []string{"u1 live s1/n1 v1 b@6"}, feed: []string{"5 u2 spec s1 gone", "6 u1 spec s1 live"},
		},
		// Scenario:
		//   t1: a deletion is confirmed, and its source acknowledges it.
		//   t2: the source is restored to a state before t1, and deletes the work again.
		// Result: the source gets the status again; without it, the source would wait for ever.
		{
			name: "same deletion again: reported again, because its source may have been restored", before: confirmed, op: del("u1", "n1", 5),
			want: "confirmed 4 s1", after: []string{"u1 confirmed s1/n1 v5 -@4 gone5@4 v5"}, feed: []string{"4 u1 status s1 confirmed"},
		},
		{
			name: "deletion of a confirmed tombstone: reported again", before: confirmed, op: delWith("u1", "n1", 5, "o"),
			want: "confirmed 4 s1", after: []string{"u1 confirmed s1/n1 v5 -@4 gone5@4 v5"}, feed: []string{"4 u1 status s1 confirmed"},
		},
		{
			name: "deletion at a lower version: reported again", before: confirmed, op: del("u1", "n1", 4),
			want: "confirmed 4 s1", after: []string{"u1 confirmed s1/n1 v5 -@4 gone5@4 v5"}, feed: []string{"4 u1 status s1 confirmed"},
		},
		// Scenario:
		//   t1: a deletion is confirmed.
		//   t2: the hub is restored to a state before t1; the work is live, and its cluster applies it again.
		//   t3: the store is restored to a state before t2, and has the confirmed tombstone of t1.
		//   t4: the work is deleted again.
		// Result: the cluster must confirm.
		{
			name: "another deletion at a lower version", before: confirmed, op: recreate(del("u1", "n1", 4)),
			want: "accepted 4 s1", after: []string{"u1 tombstone s1/n1 v4 -@4"}, feed: []string{"4 u1 spec s1 tombstone"},
		},
		{
			name: "another deletion, at the same version", before: confirmed, op: recreate(del("u1", "n1", 5)),
			want: "accepted 4 s1", after: []string{"u1 tombstone s1/n1 v5 -@4"}, feed: []string{"4 u1 spec s1 tombstone"},
		},
		{
			name: "another deletion, whose name is taken", before: with(create("u2", "n1", 1, "x")), op: recreate(del("u1", "n1", 5)),
			want: "confirmed 5 s1", after: []string{"u1 confirmed s1/n1 v5 -@5 gone5@5 v5", "u2 live s1/n1 v1 x@4"}, feed: []string{"5 u1 status s1 confirmed"},
		},
		{
			name: "deletion of a later life", before: confirmed, op: del("u1", "n1", 7),
			want: "accepted 4 s1", after: []string{"u1 tombstone s1/n1 v7 -@4"}, feed: []string{"4 u1 spec s1 tombstone"},
		},
		{
			name: "deletion of a later life whose name is taken", before: with(create("u2", "n1", 1, "x")), op: del("u1", "n1", 7),
			want: "confirmed 5 s1", after: []string{"u1 confirmed s1/n1 v7 -@5 gone5@5 v5", "u2 live s1/n1 v1 x@4"}, feed: []string{"5 u1 status s1 confirmed"},
		},
	})
}
