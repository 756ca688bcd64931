package agent

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
	"github.com/hawser-io/hawser/pkg/codec"
)

// proof is a checkpoint: the broker has exactly the held works except orphans, and these sources have synced.
func (r *rig) proof(orphans []string, sources ...string) codec.Checkpoint {
	d := r.core.set.Digest(orphans)
	return codec.Checkpoint{Cursor: at(100), Digest: &d, ListAnswered: true, Orphans: orphans, SyncedSources: sources}
}

// evicting reports whether the grace period of a work runs.
func (r *rig) evicting(name string) bool {
	a := r.record(name)
	return a != nil && a.Status.EvictionStartTime != nil
}

// orphanRig has an AppliedManifestWork web of source hub, and no work claims it.
func orphanRig(t *testing.T, journaled bool) *rig {
	t.Helper()
	r := newRig(t)
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	r.apply(hubWork("w-2", "kept", 1, configMap("b", "1")))
	if journaled {
		r.journal = newJournaledRig(t).journal
	}
	r.restart()
	r.apply(hubWork("w-2", "kept", 1, configMap("b", "1")))
	return r
}

func TestCore_EvictsOrphans(t *testing.T) {
	r := orphanRig(t, true)
	var log bytes.Buffer
	r.core.config.Log = slog.New(slog.NewTextHandler(&log, nil))
	r.settle(3 * time.Hour)
	if r.evicting("web") {
		t.Fatal("there is no evidence")
	}
	r.requests()
	r.checkpoint(r.proof(nil, "hub"))
	begun := r.now.Add(-time.Second)
	if got := r.record("web").Status.EvictionStartTime; got == nil || got.Sub(begun).Abs() > 2*time.Second {
		t.Fatalf("evicted since %v, want %v", got, begun)
	}
	r.expectRequests("get appliedmanifestworks.work.open-cluster-management.io hash-web", "patch status appliedmanifestworks.work.open-cluster-management.io hash-web")
	if n := r.core.Counts().Evicting; n != 1 {
		t.Errorf("%d are being evicted", n)
	}
	r.settle(59 * time.Minute)
	if calls := r.requests(); slices.ContainsFunc(calls, func(c string) bool { return strings.HasSuffix(c, "hash-web") }) {
		t.Errorf("unneeded requests: %q", calls)
	}
	r.expectValue("a", "1")
	r.settle(2 * time.Minute)
	if r.value("a") != "" || r.record("web") != nil || r.value("b") != "1" {
		t.Fatal("exactly the verified orphan must be gone after an hour")
	}
	if r.core.Counts().Evicting != 0 || len(r.core.orphans.found) != 0 || len(r.core.states) != 1 {
		t.Errorf("remembered: %v, %d states", r.core.orphans.found, len(r.core.states))
	}
	if logged(&log, "evicting an AppliedManifestWork") != 1 || logged(&log, "no source has the work of this") != 1 {
		t.Errorf("the log is\n%s", &log)
	}
}

func TestCore_EvictsNothingWithoutProof(t *testing.T) {
	for name, change := range map[string]func(r *rig) (codec.Checkpoint, bool){
		"its owner has not compared": func(r *rig) (codec.Checkpoint, bool) { return r.proof(nil, "other"), false },
		"no source has compared":     func(r *rig) (codec.Checkpoint, bool) { return r.proof(nil), false },
		"the owner has":              func(r *rig) (codec.Checkpoint, bool) { return r.proof(nil, "a", "hub"), true },
		"something differs":          func(r *rig) (codec.Checkpoint, bool) { cp := r.proof(nil, "hub"); cp.Digest.Count++; return cp, false },
		"more is under way":          func(r *rig) (codec.Checkpoint, bool) { cp := r.proof(nil, "hub"); cp.Digest = nil; return cp, false },
		"it is another agent's":      changed(func(o *unstructured.Unstructured) { o.Object["spec"].(map[string]any)["agentID"] = "other" }),
		"it names no owner":          changed(func(o *unstructured.Unstructured) { o.SetAnnotations(nil) }),
		"the state directory fails": func(r *rig) (codec.Checkpoint, bool) {
			r.journal.fail = func(string, string) error { return errFull }
			r.checkpoint(r.proof(nil))
			return r.proof(nil, "hub"), false
		},
		"a work is not in it": func(r *rig) (codec.Checkpoint, bool) { r.breakJournal(); return r.proof(nil, "hub"), false },
		"it is an OCM broker": func(r *rig) (codec.Checkpoint, bool) { r.subscribe(ocmAccepted); return r.proof(nil, "hub"), false },
		"eviction is switched off": func(r *rig) (codec.Checkpoint, bool) {
			r.core.config.EvictionGracePeriod = evictionOff
			return r.proof(nil, "hub"), false
		},
		"another work has its name meanwhile": func(r *rig) (codec.Checkpoint, bool) {
			r.core.Handle(r.t.Context(), r.event(hubWork("w-9", "web", 1), codec.CreateRequest, nil)) // unusable
			return r.proof(nil, "hub"), false
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := orphanRig(t, true)
			cp, want := change(r)
			r.checkpoint(cp)
			r.settle(3 * time.Hour)
			if got := r.record("web") == nil; got != want {
				t.Fatalf("evicted: %t, want %t", got, want)
			}
			if !want && (r.evicting("web") || r.value("a") != "1") {
				t.Errorf("got %+v", r.record("web").Status)
			}
		})
	}
}

func changed(how func(*unstructured.Unstructured)) func(r *rig) (codec.Checkpoint, bool) {
	return func(r *rig) (codec.Checkpoint, bool) {
		r.f.Edit(appliedwork.Ref(appliedwork.Name(testHubHash, "web")), how)
		return r.proof(nil, "hub"), false
	}
}

// breakJournal makes writes to the journal fail, and then delivers a work.
func (r *rig) breakJournal() {
	r.journal.fail = func(op, _ string) error {
		if op == "put" || op == "renew" {
			return errFull
		}
		return nil
	}
	r.apply(hubWork("w-3", "full", 1, configMap("c", "1")))
}

func TestCore_EvictionGoesOnWhenTheStateDirectoryWorksAgain(t *testing.T) {
	r := orphanRig(t, true)
	r.breakJournal()
	r.checkpoint(r.proof(nil, "hub"))
	r.settle(time.Hour)
	if r.evicting("web") {
		t.Fatal("evicted while works are not on the journal")
	}
	r.journal.fail = nil
	r.settle(2 * time.Minute)
	if !r.evicting("web") {
		t.Fatal("nothing stands in the way any more")
	}
}

func TestCore_CountsUnownedOrphans(t *testing.T) {
	r := orphanRig(t, false)
	var log bytes.Buffer
	r.core.config.Log = slog.New(slog.NewTextHandler(&log, nil))
	ref := appliedwork.Ref(appliedwork.Name(testHubHash, "web"))
	r.f.Edit(ref, func(o *unstructured.Unstructured) { o.SetAnnotations(nil) })
	for range 3 {
		r.checkpoint(r.proof(nil, "hub"))
		r.f.Edit(ref, func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{"a": r.now.String()}) })
		r.checkpoint(r.proof(nil))
	}
	if n := r.core.Counts().UnownedOrphans; n != 1 || logged(&log, "names no source") != 1 {
		t.Fatalf("%d are counted\n%s", n, &log)
	}
	r.f.Edit(ref, func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
	r.f.Remove(ref)
	if n := r.core.Counts().UnownedOrphans; n != 0 {
		t.Fatalf("%d are counted", n)
	}
}

func TestCore_EvictionIsCancelled(t *testing.T) {
	r := orphanRig(t, false)
	r.checkpoint(r.proof(nil, "hub"))
	r.settle(30 * time.Minute)

	// The proof is lost for a while: the grace period continues, and nothing is removed.
	r.core.Disconnected(errAway)
	r.settle(2 * time.Hour)
	r.expectValue("a", "1")
	r.subscribe(accepted)
	r.checkpoint(codec.Checkpoint{Cursor: at(9), Digest: &codec.Digest{Count: 9}, ListAnswered: true, SyncedSources: []string{"hub"}})
	r.settle(2 * time.Hour)
	if !r.evicting("web") || r.value("a") != "1" {
		t.Fatal("it is neither evicted nor spared yet")
	}

	// The work is received again.
	r.revision = 200
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	if r.evicting("web") || r.core.Counts().Evicting != 0 {
		t.Fatal("its work is there again")
	}
	r.checkpoint(r.proof(nil, "hub"))
	r.settle(3 * time.Hour)
	r.expectValue("a", "1")

	// An unusable spec of the work ends the eviction, too.
	r = orphanRig(t, false)
	r.checkpoint(r.proof(nil, "hub"))
	r.apply(hubWork("w-1", "web", 2))
	if r.evicting("web") || r.core.Counts().Evicting != 0 {
		t.Fatal("its work is there again")
	}
	// A repeated, unchanged spec ends the eviction, too.
	r = newRig(t)
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	r.core.Disconnected(errAway)
	r.subscribe(accepted)
	r.checkpoint(r.proof([]string{"w-1"}, "hub"))
	r.core.Disconnected(errAway)
	r.subscribe(accepted)
	r.checkpoint(r.proof(nil, "hub"))
	if r.evicting("web") {
		t.Fatal("the broker has it")
	}
}

// A restarted agent continues the grace period of the last one, and does not trust its clock at once.
func TestCore_EvictionOutlivesTheProcess(t *testing.T) {
	r := orphanRig(t, true)
	r.checkpoint(r.proof(nil, "hub"))
	r.settle(50 * time.Minute)
	r.start()
	r.settle(5 * time.Minute)
	r.resume()
	r.checkpoint(r.proof(nil, "hub"))
	r.settle(4 * time.Minute)
	r.expectValue("a", "1")
	r.settle(trustClock - 3*time.Minute)
	r.expectValue("a", "")

	// A clock that goes back does not make the grace period longer.
	r = orphanRig(t, true)
	r.checkpoint(r.proof(nil, "hub"))
	r.now = r.now.Add(-24 * time.Hour)
	r.start()
	r.resume()
	r.checkpoint(r.proof(nil, "hub"))
	r.settle(time.Hour + time.Minute)
	r.expectValue("a", "")
}

func TestCore_EvictsOrphansAfterSync(t *testing.T) {
	r := newJournaledRig(t)
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	r.apply(hubWork("w-2", "kept", 1, configMap("b", "1")))
	r.core.Disconnected(errAway)
	r.subscribe(accepted)
	orphans := []string{"w-1"}

	// While the owner has not synced, the work is maintained as before.
	r.checkpoint(r.proof(orphans, "other"))
	r.f.Remove(r.ref("ConfigMap", "a"))
	r.settle(3 * time.Hour)
	r.expectValue("a", "1")
	if r.evicting("web") {
		t.Fatal("the work is evicted before its owner has synced")
	}

	r.checkpoint(r.proof(orphans, "hub"))
	if !r.evicting("web") {
		t.Fatal("the work is not evicted after its owner has synced")
	}
	r.f.Remove(r.ref("ConfigMap", "a"))
	r.settle(30 * time.Minute)
	r.expectValue("a", "1")

	// The work is created again, and deleted again.
	r.revision = 200
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	if r.evicting("web") {
		t.Fatal("it was received")
	}
	r.checkpoint(r.proof(nil, "hub"))
	r.core.Disconnected(errAway)
	r.subscribe(accepted)
	r.checkpoint(r.proof(orphans, "hub"))
	r.settle(59 * time.Minute)

	// An evicted work must not return with the next process, so its journal entry is removed first.
	r.journal.fail = func(op, _ string) error {
		if op == "remove" || op == "renew" {
			return errors.New("broken")
		}
		return nil
	}
	r.settle(10 * time.Minute)
	r.expectValue("a", "1")
	r.expectJournal("w-1", "w-2")
	r.journal.fail = nil
	r.settle(trustClock + time.Minute) // the failed attempt has dropped the grace period
	r.expectValue("a", "")
	r.expectValue("b", "1")
	r.expectJournal("w-2")
	if r.record("web") != nil || r.core.set.Get("w-1") != nil {
		t.Fatal("something is left")
	}
}

// Scenario:
//
//	t1: a work is applied.
//	t2: its delete option becomes Orphan; the agent receives that while the cluster does not answer, so it is
//	not recorded there.
//	t3: the work becomes a verified orphan and is given up before the cluster answers.
//	t4: the cluster answers; its AppliedManifestWork is an orphan.
//
// Result: its objects are released before the work is given up. Afterwards it is unknown that they are to
// outlive it.
func TestCore_EvictionKeepsOrphanedObjects(t *testing.T) {
	for name, held := range map[string]*workv1.DeleteOption{
		"Orphan":     {PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan},
		"Foreground": {PropagationPolicy: workv1.DeletePropagationPolicyTypeForeground},
	} {
		t.Run(name, func(t *testing.T) {
			r := newJournaledRig(t)
			r.core.config.EvictionGracePeriod = 0
			r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
			w := hubWork("w-1", "web", 2, configMap("a", "2"))
			w.Spec.DeleteOption = held
			r.core.Handle(t.Context(), r.event(w, codec.UpdateRequest, nil))
			r.core.Disconnected(errAway)
			r.f.Refuse = func(clustertest.Call) error { return apierrors.NewServiceUnavailable("away") }
			r.subscribe(accepted)
			r.checkpoint(r.proof([]string{"w-1"}, "hub"))
			r.expectValue("a", "1")
			r.f.Refuse = nil
			r.settle(time.Hour)
			if r.record("web") != nil || r.core.set.Get("w-1") != nil {
				t.Fatal("something is left")
			}
			want := ""
			if name == "Orphan" {
				want = "1"
			}
			r.expectValue("a", want)
		})
	}
}

func TestCore_OrphansWithNothingOnTheCluster(t *testing.T) {
	for name, other := range map[string]bool{"without a record": false, "whose name is another's": true} {
		t.Run(name, func(t *testing.T) {
			r := newJournaledRig(t)
			r.apply(hubWork("w-1", "web", 1)) // was never usable
			if other {
				r.core.set.Drop("w-1")
				r.apply(hubWork("w-9", "web", 1, configMap("a", "1")))
				r.core.set.Drop("w-9")
				r.apply(hubWork("w-1", "web", 1))
			}
			r.core.Disconnected(errAway)
			r.subscribe(accepted)
			r.checkpoint(r.proof([]string{"w-1"}))
			if r.core.set.Get("w-1") == nil {
				t.Fatal("dropped without evidence that it is not wanted")
			}
			r.checkpoint(r.proof([]string{"w-1"}, "hub"))
			r.settle(10 * time.Second)
			if r.core.set.Get("w-1") != nil || slices.Contains(r.journal.has(), "w-1") {
				t.Fatal("the work is still held")
			}
			if other != r.evicting("web") || other && r.value("a") != "1" {
				t.Fatal("want a separate grace period for objects on the cluster")
			}
		})
	}
}

func TestCore_DisabledEvictionClearsGracePeriod(t *testing.T) {
	r := orphanRig(t, false)
	r.checkpoint(r.proof(nil, "hub"))
	if !r.evicting("web") {
		t.Fatal("the grace period does not run")
	}
	r.grace = evictionOff
	r.restart()
	r.apply(hubWork("w-2", "kept", 1, configMap("b", "1")))
	r.checkpoint(r.proof(nil, "hub"))
	r.settle(3 * time.Hour)
	if r.evicting("web") || r.value("a") != "1" {
		t.Fatalf("got %+v", r.record("web").Status)
	}

	// The same holds for the record of a held work.
	r = newRig(t)
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	r.core.Disconnected(errAway)
	r.subscribe(accepted)
	r.checkpoint(r.proof([]string{"w-1"}, "hub"))
	if !r.evicting("web") {
		t.Fatal("the grace period does not run")
	}
	r.core.config.EvictionGracePeriod = evictionOff
	r.settle(3 * time.Hour)
	if r.evicting("web") || r.value("a") != "1" || r.core.set.Get("w-1") == nil {
		t.Fatalf("got %+v", r.record("web").Status)
	}
}

// An agent that restarts between the two names of a work removes the objects under the old one. There is no
// grace period: the source has renamed the work.
func TestCore_RenamedBeforeARestart(t *testing.T) {
	r := newJournaledRig(t)
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	r.inSync(1)
	r.deliver(hubWork("w-1", "new", 2, configMap("b", "1")))
	r.start()
	r.resume()
	r.settle(time.Minute)
	if r.record("web") == nil || r.record("new") != nil {
		t.Fatal("it is not confirmed yet")
	}
	r.checkpoint(r.proof(nil, "hub"))
	r.settle(time.Minute)
	if r.record("web") != nil || r.record("new") == nil || r.value("a") != "" || r.value("b") != "1" {
		t.Fatal("want the objects of the old name deleted once the new name exists")
	}
}

// An AppliedManifestWork of the same agent with another hub identity is evicted. Objects that the present hub
// also wants stay.
func TestCore_RecordsOfAnotherHubIdentity(t *testing.T) {
	r := newRig(t)
	r.core.config.HubHash = appliedwork.HubHash("old.example.com")
	r.core.store.HubHash = r.core.config.HubHash
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1"), configMap("old", "1")))
	old := appliedwork.Ref(appliedwork.Name(r.core.config.HubHash, "web"))
	r.restart()
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	r.checkpoint(r.proof(nil, "hub"))
	r.settle(2 * time.Hour)
	if r.f.Look(old) != nil || r.value("a") != "1" || r.value("old") != "" || len(r.configMap("a").GetOwnerReferences()) != 1 {
		t.Fatalf("got %v", r.f.Look(old))
	}
	if calls := strings.Join(r.requests(), "\n"); strings.Contains(calls, "delete configmaps default/a") {
		t.Error("what both want was deleted")
	}
}
