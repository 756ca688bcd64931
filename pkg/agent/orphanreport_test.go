package agent

import (
	"strings"
	"testing"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
	"github.com/hawser-io/hawser/pkg/codec"
)

// leftBehind creates an AppliedManifestWork as OCM's agent leaves it, with a ConfigMap, and returns the
// expected report entry.
func (r *rig) leftBehind(hash, work, object string) codec.OrphanRecord {
	r.t.Helper()
	name := appliedwork.Name(hash, work)
	o := clustertest.Object("work.open-cluster-management.io/v1", "AppliedManifestWork", "", name,
		"spec", map[string]any{"hubHash": hash, "agentID": testAgentID, "manifestWorkName": work})
	o.SetFinalizers([]string{workv1.AppliedManifestWorkFinalizer})
	r.f.Put(o)
	store := appliedwork.Store{Objects: r.f}
	rec, err := store.Load(r.t.Context(), name)
	if err != nil {
		r.t.Fatal(err)
	}
	var entries []appliedwork.Entry
	if object != "" {
		cm := clustertest.Object("v1", "ConfigMap", "default", object, "data", map[string]any{"k": "1"})
		if live := r.configMap(object); live != nil {
			cm = live
		}
		cm.SetOwnerReferences(append(cm.GetOwnerReferences(), rec.Owner().Reference()))
		uid := string(r.f.Put(cm).GetUID())
		entries = []appliedwork.Entry{{ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: "default", Name: object}, Version: "v1", UID: uid}}
	}
	if rec, err = store.SetEntries(r.t.Context(), rec, entries); err != nil {
		r.t.Fatal(err)
	}
	return reportOf(rec)
}

// order sends an operator's order, as the broker does.
func (r *rig) order(uid, name string, adopt bool) {
	r.t.Helper()
	e, err := codec.NewResolveOrphan(codec.SyncParams{ID: "x", Time: r.now, Source: "broker", Cluster: testCluster}, codec.ResolveOrphan{UID: uid, Name: name, Adopt: adopt})
	if err != nil {
		r.t.Fatal(err)
	}
	r.core.Handle(r.t.Context(), e)
	r.settle(time.Minute)
}

// An AppliedManifestWork of another agent is reported and never removed, unless an operator orders exactly
// that.
func TestCore_RemovesUnownedOrphanOnlyOnRequest(t *testing.T) {
	r := newRig(t)
	left := r.leftBehind(testHubHash, "old", "a")
	r.inSync(0)
	r.settle(2 * time.Hour)
	if len(r.orphanReport.Records) != 1 || r.orphanReport.Records[0].UID != left.UID || r.orphanReport.Records[0].Objects != 1 || r.configMap("a") == nil {
		t.Fatalf("reported %+v", r.orphanReport)
	}
	r.order("another-uid", left.Name, false)
	r.order(left.UID, "another-name", false)
	if r.configMap("a") == nil {
		t.Fatal("it was removed for another one's order")
	}
	r.order(left.UID, left.Name, false)
	if r.configMap("a") != nil || r.record("old") != nil || len(r.orphanReport.Records) != 0 {
		t.Fatalf("it is still there, reported %+v", r.orphanReport)
	}
}

// A running OCM agent keeps updating its AppliedManifestWorks: the reports to the broker are up to date.
func TestCore_ReportsUnownedOrphans(t *testing.T) {
	r := newRig(t)
	left := r.leftBehind(testHubHash, "old", "")
	r.inSync(0)
	r.settle(time.Minute)
	if len(r.orphanReport.Records) != 1 || r.orphanReport.Records[0].Objects != 0 {
		t.Fatalf("reported %+v", r.orphanReport)
	}
	store := appliedwork.Store{Objects: r.f}
	rec, err := store.Load(t.Context(), left.Name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.SetEntries(t.Context(), rec, []appliedwork.Entry{{
		ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: "default", Name: "a"}, Version: "v1", UID: "u",
	}}); err != nil {
		t.Fatal(err)
	}
	r.settle(time.Minute)
	if len(r.orphanReport.Records) != 1 || r.orphanReport.Records[0].Objects != 1 {
		t.Fatalf("reported %+v", r.orphanReport)
	}
}

// The orphan has an owner when the order arrives: nothing is removed.
func TestCore_KeepsOrphanWithNewOwner(t *testing.T) {
	r := newRig(t)
	left := r.leftBehind(testHubHash, "web", "a")
	r.inSync(0)
	r.settle(time.Minute)
	uid := r.configMap("a").GetUID()
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	r.order(left.UID, left.Name, false)
	if live := r.configMap("a"); live == nil || live.GetUID() != uid || r.record("web") == nil || len(r.orphanReport.Records) != 0 {
		t.Fatalf("got %v, reported %+v", live, r.orphanReport)
	}
}

// An orphan under a former identity is adopted by the work of its name. If there is none, the agent reports
// that.
func TestCore_AdoptsUnownedOrphans(t *testing.T) {
	r := newRig(t)
	former := appliedwork.HubHash("former")
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	uid := r.configMap("a").GetUID()
	left := r.leftBehind(former, "web", "a")
	alone := r.leftBehind(former, "db", "b")
	r.inSync(1)
	r.settle(time.Minute)
	if len(r.orphanReport.Records) != 2 {
		t.Fatalf("reported %+v", r.orphanReport)
	}
	r.order(alone.UID, alone.Name, true)
	if len(r.orphanReport.Records) != 2 || !strings.Contains(r.orphanReport.Records[0].Outcome+r.orphanReport.Records[1].Outcome, "there is no work db") || r.configMap("b") == nil {
		t.Errorf("reported %+v", r.orphanReport)
	}
	r.order(left.UID, left.Name, true)
	r.checkpoint(r.proof(nil, "hub"))
	r.settle(2 * time.Hour)
	live := r.configMap("a")
	if r.f.Look(appliedwork.Ref(left.Name)) != nil || live == nil || live.GetUID() != uid || len(live.GetOwnerReferences()) != 1 {
		t.Errorf("got %v and %v", r.f.Look(appliedwork.Ref(left.Name)), live)
	}
	if r.configMap("b") == nil {
		t.Error("an orphan that was not adopted was removed")
	}
}
