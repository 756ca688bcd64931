package broker_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

func (w *world) confirmedTombstones() (n int) {
	w.Helper()
	synctest.Wait()
	err := w.Store.Scan(w.Context(), store.Scope{DataType: codec.ManifestBundles}, func(m store.Meta) error {
		if m.State == store.ConfirmedTombstone {
			n++
		}
		return nil
	})
	if err != nil {
		w.Fatal(err)
	}
	return n
}

// TestTombstoneGC_CollectsAfterRetention checks that only confirmed tombstones are collected, and not before
// the retention is over.
func TestTombstoneGC_CollectsAfterRetention(t *testing.T) {
	inWorld(t, broker.Config{Retention: 24 * time.Hour, TombstoneGC: time.Hour}, func(w *world) {
		source := w.source("src")
		confirm := func(from, to int) {
			for i := from; i < to; i++ {
				id := fmt.Sprint("w", i)
				w.put(source, work{id: id, version: 1}.event())
				w.put(source, work{id: id, version: 2, deleting: true}.event())
			}
		}
		w.put(source, work{id: "live", version: 1}.event())
		confirm(0, 600)
		pass(12 * time.Hour)
		confirm(600, 610)
		pass(11*time.Hour + 30*time.Minute)
		if n := w.confirmedTombstones(); n != 610 {
			t.Errorf("%d confirmed tombstones before the retention is over, want 610", n)
		}
		pass(90 * time.Minute)
		if n := w.confirmedTombstones(); n != 10 {
			t.Errorf("%d confirmed tombstones after it, want the 10 later ones", n)
		}
		pass(13 * time.Hour)
		if n := w.confirmedTombstones(); n != 0 {
			t.Errorf("%d confirmed tombstones at the end", n)
		}
		if _, err := w.Store.Get(w.Context(), store.Key{DataType: codec.ManifestBundles, Cluster: "c1", ResourceID: "live"}); err != nil {
			t.Errorf("the live record: %v", err)
		}
	})
}

// TestTombstoneGC_ClockAhead checks a machine that resumes with a clock one year ahead during a tombstone GC.
// The confirmed tombstones stay. When the clock is right, they are removed at the end of their retention.
func TestTombstoneGC_ClockAhead(t *testing.T) {
	var ahead atomic.Int64
	now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	inWorld(t, broker.Config{Retention: 24 * time.Hour, TombstoneGC: time.Hour, Now: now}, func(w *world) {
		source := w.source("src")
		w.put(source, work{version: 1}.event())
		w.put(source, work{version: 2, deleting: true}.event())
		for range 3 {
			pass(time.Hour - time.Second)
			ahead.Store(int64(365 * 24 * time.Hour))
			pass(2 * time.Second)
			ahead.Store(0)
			pass(time.Hour - time.Second) // a sweep with the right clock
			if n := w.confirmedTombstones(); n != 1 {
				t.Fatalf("%d confirmed tombstones after a GC by a clock that was ahead, want 1", n)
			}
		}
		pass(20 * time.Hour)
		if n := w.confirmedTombstones(); n != 0 {
			t.Errorf("%d confirmed tombstones after the retention", n)
		}
	})
}

// TestTombstoneGC_KeepsUnacknowledged checks that a source that connects late still gets the deletion of its
// work.
func TestTombstoneGC_KeepsUnacknowledged(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		w.put(w.source("src"), work{version: 1}.event())
		w.put(w.source("src"), work{version: 2, deleting: true}.event())
		pass(6 * 24 * time.Hour)
		source := w.open(w.source("src"), nil)
		w.put(source.peer, hashes("src", "", codec.StatusHash{ResourceID: "w1"}))
		last := source.expect("status resync_response w1 v2")
		if deleted, err := codec.ReportsDeleted(last[0].Data); err != nil || !deleted {
			t.Errorf("last status %s: %v", last[0].Data, err)
		}
	})
}
