package agent

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
)

// applyOCM delivers a work as an OCM broker does, and runs for a moment.
func (r *rig) applyOCM(w *workv1.ManifestWork, action codec.Action) {
	r.t.Helper()
	r.handle(r.ocmEvent(w, action, nil))
	r.settle(10 * time.Second)
}

// Behind an OCM broker, which assigns no revisions, the desired state survives the process too. This includes
// entries of a former release.
func TestCore_RestartWhileAnOCMBrokerIsAway(t *testing.T) {
	for _, former := range []bool{false, true} {
		r := newJournaledRig(t)
		r.start()
		r.subscribe(ocmAccepted)
		web, gone := hubWork("w-1", "web", 3, configMap("a", "1")), hubWork("w-2", "gone", 1, configMap("b", "1"))
		r.applyOCM(web, codec.CreateRequest)
		r.applyOCM(gone, codec.CreateRequest)
		r.core.Disconnected(errAway)
		r.core.Handle(t.Context(), r.ocmEvent(gone, codec.DeleteRequest, nil))
		if former {
			for id, b := range r.journal.entries {
				e, err := codec.Unmarshal(b)
				if err != nil {
					t.Fatal(err)
				}
				e.SetExtension(codec.ExtRevision, "0")
				if r.journal.entries[id], err = codec.Marshal(e); err != nil {
					t.Fatal(err)
				}
			}
		}

		r.start()
		if n := r.core.Counts(); n.Live != 1 || n.Deleting != 1 || n.Unconfirmed != 2 {
			t.Fatalf("former release %t: loaded %+v", former, n)
		}
		r.f.Edit(r.ref("ConfigMap", "a"), func(o *unstructured.Unstructured) { o.Object["data"] = map[string]any{"k": "drift"} })
		r.settle(time.Minute)
		r.expectValue("a", "1")
		r.expectValue("b", "")

		// The agent lists nothing, so the broker sends all works again. That confirms them.
		if l := r.subscribe(ocmAccepted); len(l) != 0 {
			t.Fatalf("listed %v", l)
		}
		r.applyOCM(web, codec.CreateRequest)
		if n := r.core.Counts(); n.Live != 1 || n.Deleting != 0 || n.Unconfirmed != 0 || !r.statuses["w-2"].Deleted {
			t.Fatalf("confirmed %+v", n)
		}
		r.expectStatus("w-1", workApplied, workAvailable)
		r.expectJournal("w-1")
	}
}

// Scenario:
//
//	t1: a work takes the name of another, and its entry is written.
//	t2: it is applied.
//	t3: the agent ends before the entry of the first is removed.
//
// Result: both are loaded without a revision. The one that was written later is wanted.
func TestCore_RestartBetweenTwoWorksOfAnOCMBroker(t *testing.T) {
	r := newJournaledRig(t)
	r.start()
	r.subscribe(ocmAccepted)
	for _, ids := range [][2]string{{"w-1", "w-2"}, {"w-4", "w-3"}} {
		r.applyOCM(hubWork(ids[0], "web", 7, configMap("a", "first")), codec.CreateRequest)
		kept := r.journal.entries[ids[0]]
		r.applyOCM(hubWork(ids[1], "web", 1, configMap("a", "second")), codec.CreateRequest)
		r.journal.entries[ids[0]] = kept
		r.core.Disconnected(errAway)
		r.start()
		r.f.Remove(r.ref("ConfigMap", "a"))
		r.settle(time.Minute)
		r.expectValue("a", "second")
		r.expectJournal(ids[1])
		r.subscribe(ocmAccepted)
	}
}
