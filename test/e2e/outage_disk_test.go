package e2e

import (
	"context"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/internal/local/fleet"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/test/consistency"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// TestBrokerRestoredFromBackup: changes after the backup, and during the outage of the broker, have their
// correct result in the end.
func TestBrokerRestoredFromBackup(t *testing.T) {
	f := &shared
	l := f.outage(t)
	l.each(t, keys("backup-gone-1", "backup-gone-2", "backup-gone-3"), l.Create)
	l.settled(t)
	data, backup := f.Volume(fleet.Broker, "data"), filepath.Join(t.TempDir(), "backup")
	operator := f.PKI()
	f.hawser(t, "store", "backup", "--broker", f.BrokerAddr(), "--to", backup, "--ca", operator.CACert(),
		"--cert", operator.Cert(pki.Operator, "operator"), "--key", operator.Key(pki.Operator, "operator"))

	l.each(t, l.steady, l.Update)
	l.each(t, keys("backup-gone-1", "backup-gone-2"), l.Delete)
	l.each(t, keys("backup-new-1", "backup-new-2"), l.Create)
	l.each(t, keys("backup-new-1"), l.Update)
	l.settled(t)

	// The restored broker does not know of later deletions until their source has sent them again.
	l.History.Returns(true)
	t.Cleanup(func() { l.History.Returns(false) })
	f.broker().Kill()
	f.startLater(t, fleet.Broker)
	emptyDir(t, data)
	f.hawser(t, "store", "restore", "--from", backup, "--data-dir", data)
	l.each(t, l.steadyOn(cluster2), l.Update)
	l.each(t, keys("backup-gone-3", "backup-new-2"), l.Delete)
	l.each(t, keys("backup-new-3"), l.Create)
	f.start(t, fleet.Broker)
	l.settled(t)
	t.Logf("%d objects came back before they were deleted again", len(l.History.Returned()))
}

// TestBrokerReplaced: the broker starts with an empty disk. Meanwhile a work is deleted and its finalizer is
// removed, so no source can report that deletion. The agent evicts the objects of that work once it is certain
// that no source has it.
func TestBrokerReplaced(t *testing.T) {
	f := &shared
	l := f.outage(t)
	forgotten := keys("lost-forgotten")
	l.each(t, keys("lost-deleted-1", "lost-deleted-2"), l.Create)
	l.each(t, forgotten, l.Create)
	l.settled(t)
	f.broker().Kill()
	f.startLater(t, fleet.Broker)
	emptyDir(t, f.Volume(fleet.Broker, "data"))
	l.each(t, keys("lost-deleted-1"), l.Delete)
	l.each(t, keys("lost-created"), l.Create)
	l.each(t, l.steadyOn(cluster1), l.Update)
	l.each(t, forgotten, l.Delete)
	l.each(t, forgotten, func(ctx context.Context, k consistency.Key) error {
		typ, patch := harness.MergePatch(map[string]any{"metadata": map[string]any{"finalizers": nil}})
		_, err := f.HubAPI.Work.WorkV1().ManifestWorks(k.Cluster).Patch(ctx, k.Name, typ, patch, metav1.PatchOptions{})
		return err
	})
	f.start(t, fleet.Broker)
	l.each(t, keys("lost-deleted-2"), l.Delete)
	l.settled(t)
}
