package agent

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/journal"
	"github.com/hawser-io/hawser/pkg/codec"
)

// The agent of commit 0647681f left formerJournal, and formerObjects on its cluster, as the API server returns
// them. TestFormer_Write of that commit wrote them.
const (
	formerJournal = "journal/testdata/former-2"
	formerObjects = "testdata/former/objects.json"
)

// formerCursor is the cursor of the former agent.
var formerCursor = at(12)

// formerSequence is the sequence id of its last status that the broker accepted.
const formerSequence = "2006925014594490368"

func openJournal(t *testing.T, dir string) *journal.Journal {
	t.Helper()
	j, err := journal.Open(journal.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// formerRig is an agent on the cluster, and with the state directory, of a former agent.
func formerRig(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.now = r.now.Add(time.Hour)
	b, err := os.ReadFile(formerObjects)
	if err != nil {
		t.Fatal(err)
	}
	var all []*unstructured.Unstructured
	if err := json.Unmarshal(b, &all); err != nil {
		t.Fatal(err)
	}
	r.putAll(all)
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.CopyFS(dir, os.DirFS(formerJournal)); err != nil {
		t.Fatal(err)
	}
	j := openJournal(t, dir)
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	r.files, r.outcome = j, codec.OutcomeAccepted
	r.start()
	r.requests()
	return r
}

// putAll puts objects on the cluster with their former uids. The fake cluster numbers uids by its write counter,
// so other writes fill the gaps.
func (r *rig) putAll(all []*unstructured.Unstructured) {
	r.t.Helper()
	slices.SortFunc(all, func(a, b *unstructured.Unstructured) int {
		return strings.Compare(string(a.GetUID()), string(b.GetUID()))
	})
	namespace := r.f.Ref("v1", "Namespace", "", "default")
	for _, o := range all {
		for r.counted()+1 < uidNumber(o.GetUID()) {
			r.f.Edit(namespace, func(n *unstructured.Unstructured) { n.SetAnnotations(map[string]string{"n": n.GetResourceVersion()}) })
		}
		c := o.DeepCopy()
		c.SetResourceVersion("")
		if got := r.f.Put(c); got.GetUID() != o.GetUID() {
			r.t.Fatalf("%s %s has uid %s, want %s", o.GetKind(), o.GetName(), got.GetUID(), o.GetUID())
		}
	}
	for _, o := range all {
		ref := r.f.Ref(o.GetAPIVersion(), o.GetKind(), o.GetNamespace(), o.GetName())
		if status := o.Object["status"]; status != nil {
			b, err := json.Marshal(map[string]any{"status": status})
			if err == nil {
				_, err = r.f.Patch(r.t.Context(), ref, b, "status")
			}
			if err != nil {
				r.t.Fatal(err)
			}
		}
		if o.GetDeletionTimestamp() != nil {
			r.f.Remove(ref)
		}
	}
}

// counted returns the write counter of the cluster.
func (r *rig) counted() (n int) {
	for _, ref := range r.f.Refs() {
		version, err := strconv.Atoi(r.f.Look(ref).GetResourceVersion())
		if err != nil {
			r.t.Fatal(err)
		}
		n = max(n, version)
	}
	return n
}

func uidNumber(uid types.UID) int {
	n, err := strconv.Atoi(string(uid[len(uid)-12:]))
	if err != nil {
		panic(err)
	}
	return n
}

// heldWorks formats the held works: id, name, version, revision, tag, problem, and the spec in force.
func (r *rig) heldWorks() (works []string) {
	for _, w := range r.core.set.All() {
		manifests := 0
		if w.Spec != nil {
			manifests = len(w.Spec.Workload.Manifests)
		}
		works = append(works, fmt.Sprintf("%s %s/%s of %s v%d r%d %.6s deleting %t unconfirmed %t, in force %d %.6s %d manifests, %q %q", w.ResourceID, w.Cluster, w.Name, w.Source, w.Version, w.Revision,
			w.Tag, w.Deleting, r.core.set.Unconfirmed(w.ResourceID), w.SpecGeneration, w.SpecTag, manifests, w.Problem, w.LogTracing))
	}
	slices.Sort(works)
	return works
}

// TestFormer_Journal checks an agent that has not connected to a broker yet. It holds the works of a former
// agent, and enforces the specs that were applied. Unchanged objects are not written.
func TestFormer_Journal(t *testing.T) {
	r := formerRig(t)
	r.expectCursor(formerCursor)
	want := []string{
		`w-1 cluster1/web of hub v2 r1 35408d deleting false unconfirmed true, in force 2 35408d 2 manifests, "" "{}"`,
		`w-2 cluster1/held of hub v1 r9 216d3f deleting true unconfirmed true, in force 1 6635c7 1 manifests, "" "{}"`,
		`w-3 cluster1/broken of hub v2 r4 3c259b deleting false unconfirmed true, in force 1 d63945 1 manifests, "attribute \"metadata\": must be the JSON of a Kubernetes ObjectMeta" "{}"`,
		`w-4 cluster1/jobs of hub v1 r6 69d598 deleting false unconfirmed true, in force 1 69d598 2 manifests, "" "{}"`,
		`w-5 cluster1/traced of hub v7 r5 c3e83c deleting false unconfirmed true, in force 7 c3e83c 1 manifests, "" "{\"logging.open-cluster-management.io/a\":\"1\"}"`,
		`w-8 cluster1/late of hub v1 r10 d09419 deleting false unconfirmed true, in force 1 d09419 1 manifests, "" "{}"`,
	}
	if d := cmp.Diff(want, r.heldWorks()); d != "" {
		t.Errorf("works (-want +got):\n%s", d)
	}
	r.settle(time.Minute)
	if calls := r.written(); len(calls) != 0 {
		t.Errorf("written although nothing has changed: %q", calls)
	}

	r.f.Remove(r.ref("ConfigMap", "a"))
	r.f.Edit(r.ref("ConfigMap", "traced"), func(o *unstructured.Unstructured) { o.Object["data"] = map[string]any{"k": "drift"} })
	r.spoil("Job", "job") // the Job is complete
	r.f.Edit(r.ref("ConfigMap", "held"), func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
	r.settle(time.Minute)
	r.expectValue("a", "1")
	r.expectValue("traced", "1")
	r.expectValue("broken", "1") // of the last usable spec
	r.expectValue("late", "")    // the broker has not confirmed it yet
	if r.owned("Job", "job") {
		t.Error("a Job that is complete was applied again")
	}
	if r.record("held") != nil || r.configMap("held") != nil {
		t.Error("the deletion that had begun was not finished")
	}
}

// TestFormer_Resume checks that an agent continues from the former cursor. It does not repeat statuses that the
// broker has accepted. A grace period that had begun continues.
func TestFormer_Resume(t *testing.T) {
	r := formerRig(t)
	begun := time.Date(2026, 1, 2, 3, 6, 35, 0, time.UTC)
	if got := r.record("stray").Status.EvictionStartTime; got == nil || !got.Time.Equal(begun) {
		t.Fatalf("evicted since %v, want %v", got, begun)
	}
	r.f.Edit(r.ref("ConfigMap", "held"), func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
	r.settle(time.Minute) // the deletion that had begun is finished
	r.resume()
	proof := r.proof(nil, "hub")
	proof.HighestSequenceID = formerSequence
	r.checkpoint(proof)
	r.settle(10 * time.Second)
	var sent []string
	for _, s := range r.sent {
		sent = append(sent, fmt.Sprintf("%s v%d deleted %t", s.ResourceID, s.Version, s.Deleted))
	}
	slices.Sort(sent)
	// After each restart the status of a work with a problem is sent once more, as in the former release.
	if want := []string{"w-2 v1 deleted true", "w-3 v2 deleted false", "w-8 v1 deleted false"}; !slices.Equal(slices.Compact(sent), want) {
		t.Errorf("sent statuses of %q, want %q", sent, want)
	}
	r.expectValue("late", "1")
	r.settle(time.Hour)
	if r.record("stray") != nil {
		t.Error("the grace period is over, and the orphan is there")
	}
	for _, line := range r.heldWorks() {
		if strings.Contains(line, "unconfirmed true") {
			t.Errorf("after the checkpoint: %s", line)
		}
	}
}

// TestFormer_Records checks that values that former agents wrote to AppliedManifestWorks are still read.
func TestFormer_Records(t *testing.T) {
	r := formerRig(t)
	store := appliedwork.Store{Objects: r.f, HubHash: testHubHash, AgentID: testAgentID}
	for work, want := range map[string]appliedwork.Origin{
		"web":    {Source: "hub", WorkID: "w-1", Version: 2, Tag: "35408d04d5dd1e577ba19ce457670676"},
		"broken": {Source: "hub", WorkID: "w-3", Version: 1, Tag: "d63945a06367879ee3345b80ad3c3745"},
		"stray":  {Source: "hub", WorkID: "w-9", Version: 4, Tag: "01020000000000000000000000000000"},
	} {
		rec, err := store.Load(t.Context(), appliedwork.Name(testHubHash, work))
		if err != nil || rec == nil {
			t.Fatalf("%s: %v", work, err)
		}
		if got, ok := rec.Origin(); !ok || got != want || !rec.HasFinalizer() || rec.AgentID() != testAgentID {
			t.Errorf("%s: %+v, %t, agent %s", work, got, ok, rec.AgentID())
		}
		if again, err := store.Claim(t.Context(), rec, nil, want); err != nil || again != rec {
			t.Errorf("%s is written again: %v", work, err)
		}
	}
	rec, err := store.Load(t.Context(), appliedwork.Name(testHubHash, "jobs"))
	if err != nil || rec == nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]time.Time{"E3yppePB4nn1": time.Unix(1767323052, 0)}, rec.Completed("w-4")); d != "" {
		t.Errorf("complete manifests (-want +got):\n%s", d)
	}
}
