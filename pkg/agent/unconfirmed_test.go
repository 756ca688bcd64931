package agent

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// The AppliedManifestWork decides until the broker has confirmed the works.
func TestCore_UnconfirmedWorks(t *testing.T) {
	annotate := func(name, value string) func(*unstructured.Unstructured) {
		return func(o *unstructured.Unstructured) {
			a := o.GetAnnotations()
			if a[name] = value; value == "" {
				delete(a, name)
			}
			o.SetAnnotations(a)
		}
	}
	for name, c := range map[string]struct {
		change   func(*unstructured.Unstructured)
		enforced bool
	}{
		"as it was left":            {func(*unstructured.Unstructured) {}, true},
		"another spec":              {annotate(appliedwork.AnnotationTag, "x"), false},
		"another work of that name": {annotate(appliedwork.AnnotationWorkID, "w-9"), false},
		"made by another agent":     {annotate(appliedwork.AnnotationWorkID, ""), false},
		"no version":                {annotate(appliedwork.AnnotationVersion, "x"), false},
		"managed by another agent":  {func(o *unstructured.Unstructured) { o.Object["spec"].(map[string]any)["agentID"] = "other" }, false},
		"none":                      {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newJournaledRig(t)
			r.apply(hubWork("w-1", "web", 2, configMap("a", "1")))
			r.inSync(1)
			r.core.Disconnected(errAway)
			record := appliedwork.Ref(appliedwork.Name(testHubHash, "web"))
			if c.change == nil {
				r.f.Edit(record, func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
				r.f.Remove(record)
			} else {
				r.f.Edit(record, c.change)
			}
			r.start()
			drift := func(value string) {
				r.f.Remove(r.ref("ConfigMap", "a"))
				r.f.Put(parse(t, configMap("a", value)))
			}
			drift("drift")
			r.settle(time.Minute)
			if got := r.value("a") == "1"; got != c.enforced {
				t.Fatalf("enforced: %t, want %t", got, c.enforced)
			}

			// The cursor alone confirms nothing; the first checkpoint does.
			r.resume()
			drift("again")
			r.settle(time.Minute)
			if got := r.value("a") == "1"; got != c.enforced {
				t.Fatalf("after the resume, enforced: %t, want %t", got, c.enforced)
			}
			r.inSync(1)
			r.settle(time.Minute)
			r.expectValue("a", "1")
			r.expectStatus("w-1", workApplied, workAvailable)
		})
	}
}

// Scenario:
//
//	t1: the agent holds a deletion, and its state directory is copied.
//	t2: the hub is rolled back; the work has the same id and is applied again.
//	t3: the directory is restored; the agent loads the outdated deletion.
//	t4: agent and broker are in sync, which proves only live works.
//
// Result: neither versions nor being in sync prove the deletion. It is executed if it is of the spec applied
// last, or if it is received again.
func TestCore_UnconfirmedDeletions(t *testing.T) {
	for name, c := range map[string]struct {
		version, tag string // of the spec in the record; "" for the applied one
		begun, done  bool
	}{
		"of the applied version":           {done: true},
		"of a later version":               {version: "3", tag: "x"},
		"of a work that was created again": {version: "1", tag: "x"},
		"that had begun, with any record":  {version: "1", tag: "x", begun: true, done: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newJournaledRig(t)
			w := hubWork("w-1", "web", 2, configMap("a", "1"))
			r.apply(w)
			r.inSync(1)
			r.deliverDeletion(w)
			record := appliedwork.Ref(appliedwork.Name(testHubHash, "web"))
			r.f.Edit(record, func(o *unstructured.Unstructured) {
				a := o.GetAnnotations()
				a[appliedwork.AnnotationVersion] = cmp.Or(c.version, a[appliedwork.AnnotationVersion])
				a[appliedwork.AnnotationTag] = cmp.Or(c.tag, a[appliedwork.AnnotationTag])
				o.SetAnnotations(a)
			})
			if c.begun {
				if err := r.f.Delete(t.Context(), record, r.record("web").UID); err != nil {
					t.Fatal(err)
				}
			}
			r.start()
			r.settle(time.Minute)
			if got := r.value("a") == ""; got != c.done {
				t.Fatalf("carried out: %t, want %t", got, c.done)
			}
			r.resume()
			r.inSync(2)
			r.settle(time.Minute)
			if got := r.value("a") == ""; got != c.done {
				t.Fatalf("carried out in sync: %t, want %t", got, c.done) // being in sync is about live works only
			}
			// The broker repeats deletions before that checkpoint, so this one will not be repeated.
			if n := r.core.Counts(); n.Deleting != 0 {
				t.Fatalf("the deletion never ends: %+v", n)
			}
			r.expectJournal()
			r.deliverDeletion(w)
			r.settle(time.Minute)
			r.expectValue("a", "")
			r.expectJournal()
		})
	}
}

// Scenario:
//
//	t1: the agent is about to report that nothing of a work is left; the deletion arrives again, and there are
//	no objects to report any more.
//	t2: that is reported; the deletion arrives again before the answer, so the work is held until that is answered too.
//	t3: the report is accepted, which is stored, and the broker drops the record.
//	t4: the process ends; another one loads the deletion, and the accepted status.
//
// Result: the deletion is not repeated. It must be reported again although the status is unchanged, because
// only the answer ends the work.
func TestCore_LastReportBeforeARestart(t *testing.T) {
	r := newJournaledRig(t)
	r.outcome = codec.OutcomeAccepted
	w := hubWork("w-1", "web", 1, configMap("a", "1"))
	r.apply(w)
	r.inSync(1)
	deletion, finals := r.event(w, codec.DeleteRequest, nil), 0
	r.refuse = func(e codec.Event) error {
		if s, err := manifestwork.DecodeStatus(e); err != nil {
			return nil //nolint:nilerr // an ack
		} else if !s.Deleted {
			return nil
		}
		r.core.Handle(t.Context(), deletion)
		if finals++; finals == 1 {
			return errAway
		}
		r.refuse = nil
		r.other = append(r.other, func() { // after the broker's answer
			r.core.Stop(t.Context())
			r.start()
		})
		return nil
	}
	r.handle(deletion)
	r.expectJournal("w-1")
	r.resume()
	r.settle(time.Minute)
	r.checkpoint(codec.Checkpoint{Cursor: at(4), Digest: &codec.Digest{}, HighestSequenceID: r.sent[len(r.sent)-1].SequenceID})
	r.settle(time.Minute)
	if n := r.core.Counts(); n.Deleting != 0 {
		t.Fatalf("the deletion never ends: %+v", n)
	}
	r.expectJournal()
}

func TestCore_UnconfirmedWorkRemovedByOthers(t *testing.T) {
	r := newJournaledRig(t)
	r.apply(hubWork("w-1", "web", 2, configMap("a", "1")))
	r.inSync(1)
	record := appliedwork.Ref(appliedwork.Name(testHubHash, "web"))
	if err := r.f.Delete(t.Context(), record, r.record("web").UID); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.settle(time.Minute)
	if r.value("a") == "" {
		t.Fatal("objects are removed although it is unknown whether they are wanted")
	}
	uid := r.configMap("a").GetUID()
	r.resume()
	r.inSync(1)
	r.settle(time.Minute)
	if o := r.configMap("a"); o == nil || o.GetUID() == uid || r.record("web").DeletionTimestamp != nil {
		t.Fatal("it is not created again")
	}
}

// A power loss can leave a journal with a live work whose deletion was executed and confirmed. Nothing may
// create its objects again.
func TestCore_OutdatedJournal(t *testing.T) {
	r := newJournaledRig(t)
	w := hubWork("w-1", "web", 2, configMap("a", "1"))
	r.apply(w)
	r.inSync(1)
	before := r.journal.entries["w-1"]
	r.delete(w)
	r.expectJournal()
	r.journal.entries["w-1"] = before

	r.start()
	r.resume()
	r.settle(time.Minute)
	r.expectValue("a", "")
	// The digests differ, and the answer to the list shows the work as an orphan.
	reported := r.checkpoint(codec.Checkpoint{Cursor: at(9), Digest: &codec.Digest{}})
	if len(reported) != 1 || len(reported[0].list) != 1 {
		t.Fatalf("reported %+v", reported)
	}
	r.checkpoint(codec.Checkpoint{Cursor: at(9), Digest: &codec.Digest{}, ListAnswered: true, Orphans: []string{"w-1"}})
	r.settle(time.Minute)
	r.expectValue("a", "")
	if r.record("web") != nil {
		t.Fatal("a work that is not wanted is recorded")
	}
}

// Scenario:
//
//	t1: a work takes over the name of another one, and is applied.
//	t2: a power loss takes the journal back to before t1.
//	t3: the agent loads the former work, and receives the deletion of the later one, with Orphan.
//
// Result: the objects are released, and nothing removes them.
func TestCore_OutdatedJournalBesideALaterDeletion(t *testing.T) {
	r := newJournaledRig(t)
	r.apply(hubWork("w-1", "web", 2, configMap("a", "1")))
	r.inSync(1)
	before := r.journal.entries["w-1"]
	later := hubWork("w-2", "web", 1, configMap("a", "2"))
	r.apply(later)
	r.expectValue("a", "2")
	r.journal.entries = map[string][]byte{"w-1": before}

	r.start()
	r.resume()
	later.Generation = 3
	later.Spec.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}
	r.delete(later)
	r.delete(hubWork("w-1", "web", 3))
	r.settle(2 * time.Hour)
	r.expectValue("a", "2")
	if r.record("web") != nil {
		t.Fatal("a work that is not wanted is recorded")
	}
	r.expectJournal()
}

func TestCore_ConfirmsListedWorksWithoutOrphans(t *testing.T) {
	r := newJournaledRig(t)
	r.apply(hubWork("w-1", "web", 2, configMap("a", "1")))
	r.apply(hubWork("w-2", "orphan", 2, configMap("b", "1")))
	r.inSync(1)
	r.delete(hubWork("w-3", "other", 1)) // the status of the deletion is sent
	for _, name := range []string{"web", "orphan"} {
		ref := appliedwork.Ref(appliedwork.Name(testHubHash, name))
		r.f.Edit(ref, func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
		r.f.Remove(ref)
	}
	r.journal.did = nil
	r.restart()
	r.settle(time.Minute)
	if r.record("web") != nil || !slices.Contains(r.journal.did, "drop ") || r.journal.cursor != (codec.Cursor{}) {
		t.Fatalf("did %q", r.journal.did)
	}
	r.checkpoint(codec.Checkpoint{Cursor: at(9), Digest: &codec.Digest{Count: 7}, ListAnswered: true, Orphans: []string{"w-2"}})
	if r.record("web") == nil || r.record("orphan") != nil {
		t.Fatal("exactly what the broker can explain is to be enforced")
	}
}

// An OCM broker does not answer with unchanged works. So the list to it omits works that it has not sent since
// the start.
func TestCore_JournalAndAnOCMBroker(t *testing.T) {
	r := newJournaledRig(t)
	w := hubWork("w-1", "web", 1, configMap("a", "1"))
	r.apply(w)
	r.inSync(1)
	ref := appliedwork.Ref(appliedwork.Name(testHubHash, "web"))
	r.f.Edit(ref, func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
	r.f.Remove(ref)
	r.start()
	r.expectCursor(at(1))
	if list := r.subscribe(ocmAccepted); len(list) != 0 {
		t.Fatalf("listed %v", list)
	}
	r.settle(time.Minute)
	if r.record("web") != nil {
		t.Fatal("enforced an unconfirmed work")
	}
	r.handle(r.ocmEvent(w, codec.CreateRequest, nil))
	if r.record("web") == nil {
		t.Fatal("what the source sent again is wanted")
	}
	if list := r.subscribe(ocmAccepted); len(list) != 1 {
		t.Fatalf("listed %v", list)
	}
}
