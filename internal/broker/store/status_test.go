package store_test

import (
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

const (
	olderSeq = ": a newer sequence id is stored"
	badSeq   = ": the sequence id is invalid or too far ahead"
)

// ahead returns the sequence id of an agent whose clock is ahead.
func ahead(by time.Duration) string { return (&codec.Sequencer{}).Next(noon.Add(by).UnixMilli()) }

// early returns the op with a broker time that is a week ahead.
func early(o store.Op) store.Op {
	o.At, o.Sequence = noon.Add(7*24*time.Hour), ahead(7*24*time.Hour)
	return o
}

func TestDecide_Status(t *testing.T) {
	t.Parallel()
	live := []store.Op{create("u1", "n1", 5, "a")}
	with := func(ops ...store.Op) []store.Op { return append(append([]store.Op{}, live...), ops...) }
	ten := with(status("u1", 5, 10, "x"))
	x := []string{"u1 live s1/n1 v5 a@1 x@2 v5"}
	garbage := func(s string) store.Op { o := status("u1", 5, 11, "y"); o.Sequence = s; return o }
	runRows(t, []row{
		{name: "first", before: live, op: status("u1", 5, 10, "x"), want: "accepted 2 s1", after: x, feed: []string{"2 u1 status s1 live"}},
		{
			name: "newer sequence", before: ten, op: status("u1", 5, 11, "y"),
			want: "accepted 3 s1", after: []string{"u1 live s1/n1 v5 a@1 y@3 v5"}, feed: []string{"3 u1 status s1 live"},
		},
		{
			name: "newer sequence about an older version", before: ten, op: status("u1", 4, 11, "y"),
			want: "accepted 3 s1", after: []string{"u1 live s1/n1 v5 a@1 y@3 v4"}, feed: []string{"3 u1 status s1 live"},
		},
		{
			name: "newer sequence about a version of the lost future", before: ten, op: status("u1", 7, 11, "y"),
			want: "accepted 3 s1", after: []string{"u1 live s1/n1 v5 a@1 y@3 v7"}, feed: []string{"3 u1 status s1 live"},
		},
		// Scenario:
		//   t1: a status is sent, its answer is lost, and it is sent again.
		//   t2: the first copy is accepted, but the agent no longer waits for that answer.
		//   t3: the second copy arrives.
		// Result: the second copy is Unchanged. After Stale, the agent would send the status again.
		{name: "the same once more", before: ten, op: status("u1", 5, 10, "x"), want: "unchanged 2 s1", after: x},
		{name: "equal sequence of another version", before: ten, op: status("u1", 6, 10, "x"), want: "stale 2 s1" + olderSeq, after: x},
		{name: "equal sequence", before: ten, op: status("u1", 5, 10, "y"), want: "stale 2 s1" + olderSeq, after: x},
		{name: "older sequence", before: ten, op: status("u1", 5, 9, "y"), want: "stale 2 s1" + olderSeq, after: x},
		{name: "sequence that is days ahead", before: ten, op: garbage(ahead(codec.SequenceTolerance + time.Second)), want: "stale 2 s1" + badSeq, after: x},
		// Scenario:
		//   t1: a broker whose clock is days ahead accepts the status of an agent whose clock is ahead too.
		//   t2: the broker's clock is corrected.
		// Result: later sequence ids are not compared with the stored one.
		{
			name: "a sequence behind one that is days ahead", before: with(early(status("u1", 5, 10, "x"))), op: status("u1", 5, 11, "y"),
			want: "accepted 3 s1", after: []string{"u1 live s1/n1 v5 a@1 y@3 v5"}, feed: []string{"3 u1 status s1 live"},
		},
		{name: "unparsable sequence", before: ten, op: garbage("abc"), want: "stale 2 s1" + badSeq, after: x},
		{name: "no sequence", before: ten, op: garbage(""), want: "stale 2 s1" + badSeq, after: x},
		{name: "sequence of another node", before: ten, op: garbage("46145536"), want: "stale 2 s1" + badSeq, after: x},
		{name: "unknown id", op: status("u1", 5, 10, "x"), want: "ignored 0"},
		{
			name: "of a tombstone", before: with(del("u1", "n1", 5)), op: status("u1", 5, 10, "x"),
			want: "accepted 3 s1", after: []string{"u1 tombstone s1/n1 v5 a@2 x@3 v5"}, feed: []string{"3 u1 status s1 tombstone"},
		},
		{
			name: "of a confirmed tombstone", before: with(del("u1", "n1", 5), deleted("u1", 5, 10)), op: status("u1", 5, 11, "x"),
			want: "ignored 3 s1", after: []string{"u1 confirmed s1/n1 v5 -@3 gone5@3 v5"},
		},
		{
			name: "of the deleted work is old for the next one with this id", before: with(del("u1", "n1", 5), deleted("u1", 5, 10), create("u1", "n1", 1, "b")), op: status("u1", 5, 9, "x"),
			want: "stale 0 s1" + olderSeq, after: []string{"u1 live s1/n1 v1 b@4"},
		},
	})
}

func TestDecide_Deleted(t *testing.T) {
	t.Parallel()
	live := []store.Op{create("u1", "n1", 5, "a")}
	with := func(ops ...store.Op) []store.Op { return append(append([]store.Op{}, live...), ops...) }
	tomb := with(del("u1", "n1", 5))
	confirmed := func(v string) []string { return []string{"u1 confirmed s1/n1 v5 -@3 gone" + v + "@3 v" + v} }
	feed := []string{"3 u1 status s1 confirmed"}
	runRows(t, []row{
		{name: "confirms", before: tomb, op: deleted("u1", 5, 1), want: "confirmed 3 s1", after: confirmed("5"), feed: feed},
		{name: "of a higher version confirms", before: tomb, op: deleted("u1", 6, 1), want: "confirmed 3 s1", after: confirmed("6"), feed: feed},
		{name: "of a lower version: the deletion again", before: tomb, op: deleted("u1", 4, 1), want: "specagain 2 s1", after: []string{"u1 tombstone s1/n1 v5 a@2"}},
		{name: "without a version: the deletion again", before: tomb, op: deleted("u1", 0, 1), want: "specagain 2 s1", after: []string{"u1 tombstone s1/n1 v5 a@2"}},
		{
			name: "of any version confirms an unversioned deletion", before: with(del("u1", "n1", 0)), op: deleted("u1", 3, 1),
			want: "confirmed 3 s1", after: []string{"u1 confirmed s1/n1 v0 -@3 gone3@3 v3 over v5"}, feed: feed,
		},
		{
			name: "of any version confirms one that goes out unversioned", before: with(del("u1", "n1", 1<<33)), op: deleted("u1", 0, 1),
			want: "confirmed 3 s1", after: []string{"u1 confirmed s1/n1 v8589934592 -@3 gone0@3 v0"}, feed: feed,
		},
		{
			name: "of any version confirms one that superseded", before: with(ifRevision(1, del("u1", "n1", 3))), op: deleted("u1", 0, 1),
			want: "confirmed 3 s1", after: []string{"u1 confirmed s1/n1 v3 -@3 gone0@3 v0 over v5"}, feed: feed,
		},
		{
			name: "of an older sequence too", before: with(status("u1", 5, 10, "x"), del("u1", "n1", 5)), op: deleted("u1", 5, 9),
			want: "confirmed 4 s1", after: []string{"u1 confirmed s1/n1 v5 -@4 gone5@4 v5"}, feed: []string{"4 u1 status s1 confirmed"},
		},
		// If the deletion is unversioned, or the work has no status yet, the status may be a late confirmation of an
		// earlier deletion.
		{
			name: "of an older sequence and no version does not", before: with(status("u1", 5, 10, "x"), del("u1", "n1", 0)), op: deleted("u1", 0, 9),
			want: "stale 2 s1" + olderSeq, after: []string{"u1 tombstone s1/n1 v0 a@3 x@2 v5 over v5"},
		},
		{
			name: "of the deleted work with this id does not", before: []store.Op{create("u1", "n1", 5, "a"), status("u1", 5, 10, "x"), del("u1", "n1", 5), deleted("u1", 5, 11), create("u1", "n1", 5, "b"), del("u1", "n1", 5)},
			op: deleted("u1", 5, 11), want: "stale 0 s1" + olderSeq, after: []string{"u1 tombstone s1/n1 v5 b@6"},
		},
		{name: "of a live record: the spec again", before: live, op: deleted("u1", 5, 1), want: "specagain 1 s1", after: []string{"u1 live s1/n1 v5 a@1"}},
		{
			name: "of a live record, of any sequence: the spec again", before: with(status("u1", 5, 10, "x")), op: deleted("u1", 5, 9),
			want: "specagain 1 s1", after: []string{"u1 live s1/n1 v5 a@1 x@2 v5"},
		},
		{name: "of an unknown id", op: deleted("u1", 5, 1), want: "ignored 0"},
		{name: "twice", before: append(append([]store.Op{}, tomb...), deleted("u1", 5, 1)), op: deleted("u1", 5, 2), want: "ignored 3 s1", after: confirmed("5")},
	})
}
