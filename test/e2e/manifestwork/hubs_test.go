package manifestwork

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/test/e2e/harness"
)

// These tests run more agents on the same cluster, beside the agent of the fleet. An agent with another hub
// identity behaves as an agent of another hub.

// recordOf returns the name of an AppliedManifestWork.
func recordOf(identity, work string) string {
	sum := sha256.Sum256([]byte(identity))
	return hex.EncodeToString(sum[:]) + "-" + work
}

func record(ctx context.Context, name string) (*workv1.AppliedManifestWork, error) {
	return shared.API[cluster].Work.WorkV1().AppliedManifestWorks().Get(ctx, name, metav1.GetOptions{})
}

// ownedBy checks that a ConfigMap belongs to exactly these AppliedManifestWorks.
func ownedBy(ctx context.Context, ns, name string, records ...string) error {
	cm, err := shared.ConfigMap(ctx, cluster, ns, name)
	if err != nil {
		return err
	}
	var got []string
	for _, ref := range cm.OwnerReferences {
		got = append(got, ref.Name)
	}
	slices.Sort(got)
	slices.Sort(records)
	if !slices.Equal(got, records) || cm.DeletionTimestamp != nil {
		return fmt.Errorf("%s belongs to %q, want %q; deleted %v", name, got, records, cm.DeletionTimestamp)
	}
	return nil
}

// evicting waits until the grace period of an AppliedManifestWork runs, or until it does not run.
func evicting(t *testing.T, name string, want bool) {
	t.Helper()
	harness.Eventually(t, func(ctx context.Context) error {
		rec, err := record(ctx, name)
		if err != nil {
			return err
		}
		if runs := rec.Status.EvictionStartTime != nil; runs != want {
			return fmt.Errorf("eviction of %s: got %t, want %t", name, runs, want)
		}
		return nil
	})
}

// recordGone waits until there is no such AppliedManifestWork.
func recordGone(t *testing.T, name string) {
	t.Helper()
	harness.Eventually(t, func(ctx context.Context) error {
		_, err := record(ctx, name)
		return harness.Absent(err, "AppliedManifestWork "+name)
	})
}

// TestHubs_TwoShareAnObject: works of two hubs contain one object on one cluster. It has two owners, and is
// deleted with the last one.
func TestHubs_TwoShareAnObject(t *testing.T) {
	t.Parallel()
	f := shared
	const second = "hubs-second"
	ns := f.NamespaceOn(t, cluster)
	f.JoinAs(t, second)
	f.RunAgent(t, cluster, second, "--hub-identity="+second)
	ours := f.Create(t, harness.NewWork(t, cluster, "hubs-share", harness.ConfigMapYAML(ns, "common", "x")))
	theirs := f.Create(t, harness.NewWork(t, second, "hubs-share", harness.ConfigMapYAML(ns, "common", "x"), harness.ConfigMapYAML(ns, "own", "x")))
	f.Ready(t, ours)
	f.Ready(t, theirs)
	uid := configMap(t, ns, "common").UID
	harness.Eventually(t, func(ctx context.Context) error {
		return ownedBy(ctx, ns, "common", f.AppliedName(ours.Name), recordOf(second, theirs.Name))
	})
	f.DeleteWork(t, second, theirs.Name)
	harness.Eventually(t, func(ctx context.Context) error {
		_, err := f.Get(ctx, second, theirs.Name)
		return harness.Absent(err, "the second hub's work")
	})
	f.NoConfigMap(t, cluster, ns, "own")
	harness.Consistently(t, func(ctx context.Context) error {
		if err := ownedBy(ctx, ns, "common", f.AppliedName(ours.Name)); err != nil {
			return err
		}
		return sameObject(ctx, ns, "common", uid)
	})
	f.Remove(t, cluster, ours.Name)
	f.NoConfigMap(t, cluster, ns, "common")
}

// moves runs an agent that applies a work, and stops it. Then another agent runs that has the same works from
// another hub, on which the cluster has another name. It returns the AppliedManifestWorks of both.
func moves(t *testing.T, ns, name, firstID, secondID string) (first, second string) {
	t.Helper()
	f := shared
	next := name + "-2"
	f.JoinAs(t, name)
	f.JoinAs(t, next)
	stop := f.RunAgent(t, cluster, name, "--hub-identity="+name+"-1", "--agent-id="+firstID)
	w := f.Deliver(t, harness.NewWork(t, name, "moves", harness.ConfigMapYAML(ns, "one", "x")))
	other := f.Create(t, harness.NewWork(t, next, "moves", harness.ConfigMapYAML(ns, "one", "x")))
	first, second = recordOf(name+"-1", w.Name), recordOf(name+"-2", other.Name)
	if err := ownedBy(t.Context(), ns, "one", first); err != nil {
		t.Fatal(err)
	}
	stop()
	f.RunAgent(t, cluster, next, "--hub-identity="+name+"-2", "--agent-id="+secondID, "--state-dir=", "--appliedmanifestwork-eviction-grace-period=1s")
	harness.Eventually(t, func(ctx context.Context) error {
		rec, err := record(ctx, second)
		if err == nil && len(rec.Status.AppliedResources) != 1 {
			err = errors.New("nothing is applied yet")
		}
		return err
	})
	return first, second
}

// TestHubs_MoveWithTheSameAgentID: an agent that moved to another hub removes the works of the first hub.
// Objects in works of both hubs stay unchanged.
func TestHubs_MoveWithTheSameAgentID(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	first, second := moves(t, ns, "hubs-same", "hubs-same-id", "hubs-same-id")
	uid := configMap(t, ns, "one").UID
	recordGone(t, first)
	harness.Eventually(t, func(ctx context.Context) error { return ownedBy(ctx, ns, "one", second) })
	harness.Consistently(t, func(ctx context.Context) error { return sameObject(ctx, ns, "one", uid) })
}

// TestHubs_MoveWithAnotherAgentID: objects that another agent applied are left unchanged.
func TestHubs_MoveWithAnotherAgentID(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	// An orphan of the second agent is evicted first. That proves that the agent had its chance.
	own := abandoned(t, ns, "hubs-other-gone", "hubs-other-2")
	first, second := moves(t, ns, "hubs-other", "hubs-other-1", "hubs-other-2")
	recordGone(t, own)
	harness.Consistently(t, func(ctx context.Context) error {
		rec, err := record(ctx, first)
		if err == nil && (rec.Status.EvictionStartTime != nil || rec.DeletionTimestamp != nil) {
			err = fmt.Errorf("it is evicted: %+v", rec)
		}
		if err != nil {
			return err
		}
		return ownedBy(ctx, ns, "one", first, second)
	})
}

// abandoned runs an agent that applies a work, and ends the agent. If an agent with another cluster name
// follows, no source has the work. It returns the AppliedManifestWork.
func abandoned(t *testing.T, ns, name, agentID string) string {
	t.Helper()
	f := shared
	f.JoinAs(t, name)
	stop := f.RunAgent(t, cluster, name, "--hub-identity="+name, "--agent-id="+agentID)
	w := f.Deliver(t, harness.NewWork(t, name, "abandoned", harness.ConfigMapYAML(ns, name, "x")))
	stop()
	return recordOf(name, w.Name)
}

// successor runs an agent of the same hub that has no works.
func successor(t *testing.T, name string, grace string) (stop func()) {
	t.Helper()
	shared.JoinAs(t, name+"-next")
	return shared.RunAgent(t, cluster, name+"-next", "--hub-identity="+name, "--agent-id="+name, "--state-dir=", "--appliedmanifestwork-eviction-grace-period="+grace)
}

// startEviction creates an orphan AppliedManifestWork and waits until its grace period of an hour has begun.
// Its one ConfigMap has the given name, in the returned namespace. stop ends the agent that evicts.
func startEviction(t *testing.T, name string) (ns, rec string, stop func()) {
	t.Helper()
	ns = shared.NamespaceOn(t, cluster)
	rec = abandoned(t, ns, name, name)
	stop = successor(t, name, "1h")
	evicting(t, rec, true)
	return ns, rec, stop
}

func TestEviction_OfWorkMissingOnHub(t *testing.T) {
	t.Parallel()
	const name = "evict-gone"
	ns, rec, stop := startEviction(t, name)
	harness.Consistently(t, func(ctx context.Context) error { return ownedBy(ctx, ns, name, rec) })
	stop()
	successor(t, name, "1s")
	recordGone(t, rec)
	shared.NoConfigMap(t, cluster, ns, name)
}

func TestEviction_EndsWhenTheWorkComesBack(t *testing.T) {
	t.Parallel()
	const name = "evict-back"
	ns, rec, _ := startEviction(t, name)
	uid := configMap(t, ns, name).UID
	shared.Deliver(t, harness.NewWork(t, name+"-next", "abandoned", harness.ConfigMapYAML(ns, name, "x")))
	evicting(t, rec, false)
	if err := errors.Join(sameObject(t.Context(), ns, name, uid), ownedBy(t.Context(), ns, name, rec)); err != nil {
		t.Error(err)
	}
}

func TestEviction_AHundredYearsMeanNever(t *testing.T) {
	t.Parallel()
	const name = "evict-never"
	ns, rec, stop := startEviction(t, name)
	stop()
	successor(t, name, "876000h")
	evicting(t, rec, false)
	harness.Consistently(t, func(ctx context.Context) error { return ownedBy(ctx, ns, name, rec) })
}
