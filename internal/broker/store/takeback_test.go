package store_test

import (
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/broker/store"
)

// TestDecide_DeletionOfQueuedSpecRepeatsOutcome checks two deletions that differ only by their time. A source
// may count versions from 1 for each work with the id, and delete without data.
func TestDecide_DeletionOfQueuedSpecRepeatsOutcome(t *testing.T) {
	t.Parallel()
	tomb := "u1 tombstone s1/n1 v1 a@2"
	waits := []store.Op{create("u1", "n1", 1, "a"), del("u1", "n1", 1), create("u1", "n1", 1, "b")}
	again := del("u1", "n1", 1)
	again.DeletedAt = again.DeletedAt.Add(time.Millisecond)
	runRows(t, []row{
		{name: "at another time: it deletes the queued spec", before: waits, op: again, want: "accepted 2 s1", after: []string{tomb}},
		{
			name:   "of a later version: it is the deletion of the queued spec too",
			before: []store.Op{waits[0], waits[1], create("u1", "n1", 2, "b")}, op: del("u1", "n1", 3),
			want: "accepted 3 s1", after: []string{"u1 tombstone s1/n1 v3 a@3"}, feed: []string{"3 u1 spec s1 tombstone"},
		},
		{name: "at the same time: it is a repeat", before: waits, op: del("u1", "n1", 1), want: "unchanged 2 s1", after: []string{tomb + " (queued: u1 s1/n1 v1 b)"}},
		{name: "nothing is queued: it is a repeat", before: waits[:2], op: again, want: "unchanged 2 s1", after: []string{tomb}},
	})
}
