package e2e

import (
	"path/filepath"
	"testing"

	"github.com/hawser-io/hawser/internal/fleet"
)

// TestBrokerRestoredFromBackup: what happened since the backup, and while the
// broker was away, ends up right.
func TestBrokerRestoredFromBackup(t *testing.T) {
	f := shared
	l := f.outage(t)
	l.each(t, keys("backup-gone-1", "backup-gone-2", "backup-gone-3"), l.Create)
	l.settled(t)
	data, backup := f.Volume(fleet.Broker, "data"), filepath.Join(t.TempDir(), "backup")
	f.whileDown(t, fleet.Broker, func() { copyDir(t, data, backup) })

	l.each(t, l.steady, l.Update)
	l.each(t, keys("backup-gone-1", "backup-gone-2"), l.Delete)
	l.each(t, keys("backup-new-1", "backup-new-2"), l.Create)
	l.each(t, keys("backup-new-1"), l.Update)
	l.settled(t)

	// The broker of yesterday does not know that a work was deleted before its
	// source has told it.
	l.Ledger.Returns(true)
	t.Cleanup(func() { l.Ledger.Returns(false) })
	f.broker().Kill()
	f.startLater(t, fleet.Broker)
	copyDir(t, backup, data)
	l.each(t, l.steadyOn(cluster2), l.Update)
	l.each(t, keys("backup-gone-3", "backup-new-2"), l.Delete)
	l.each(t, keys("backup-new-3"), l.Create)
	f.start(t, fleet.Broker)
	l.settled(t)
	t.Logf("%d objects came back before they were deleted again", len(l.Ledger.Returned()))
}

// TestBrokerLost: the broker begins with an empty disk.
func TestBrokerLost(t *testing.T) {
	f := shared
	l := f.outage(t)
	l.each(t, keys("lost-deleted-1", "lost-deleted-2"), l.Create)
	l.settled(t)
	f.broker().Kill()
	f.startLater(t, fleet.Broker)
	copyDir(t, t.TempDir(), f.Volume(fleet.Broker, "data"))
	l.each(t, keys("lost-deleted-1"), l.Delete)
	l.each(t, keys("lost-created"), l.Create)
	l.each(t, l.steadyOn(cluster1), l.Update)
	f.start(t, fleet.Broker)
	l.each(t, keys("lost-deleted-2"), l.Delete)
	l.settled(t)
}
