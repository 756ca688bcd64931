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

// What the AppliedManifestWork says decides, until the broker is heard.
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
		"looked after by another":   {func(o *unstructured.Unstructured) { o.Object["spec"].(map[string]any)["agentID"] = "other" }, false},
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

			// The cursor alone says nothing; the first checkpoint does.
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

// t1 The agent holds a deletion, and its state directory is copied.
// t2 The hub went back: the work has the same id and is applied again.
// t3 The directory is restored. The agent loads the deletion of the life before.
// t4 Agent and broker are in sync, which says something of live works only.
// Therefore versions do not tell whether the deletion still counts, nor does being in
// sync: it is carried out if it is of what was applied last, or comes again.
func TestCore_UnconfirmedDeletions(t *testing.T) {
	for name, c := range map[string]struct {
		version, tag string // that the record says, "" for what was applied
		begun, done  bool
	}{
		"of what is in force":                      {done: true},
		"of something later":                       {version: "3", tag: "x"},
		"of a work that was made anew":             {version: "1", tag: "x"},
		"that had begun, whatever the record says": {version: "1", tag: "x", begun: true, done: true},
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
				t.Fatalf("carried out in sync: %t, want %t", got, c.done) // what is in sync are live works
			}
			// The broker would have repeated it before it said so: nobody will.
			if n := r.core.Counts(); n.Deleting != 0 {
				t.Fatalf("it is held for ever: %+v", n)
			}
			r.expectJournal()
			r.deliverDeletion(w)
			r.settle(time.Minute)
			r.expectValue("a", "")
			r.expectJournal()
		})
	}
}

// t1 The agent is about to report that nothing of a work is left. The deletion comes
// again, and there is nothing to say of objects any more.
// t2 That is reported. The deletion comes again before the answer, so the work is held
// until that was answered too.
// t3 The report is accepted, which is noted, and the broker lets the record go.
// t4 The process ends. Another one loads the deletion, and what was accepted.
// Nobody repeats the deletion. Therefore it has to be reported once more, although that
// says nothing new: only the answer ends the work.
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
		r.other = append(r.other, func() { // after the answer
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
		t.Fatalf("it is held for ever: %+v", n)
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
		t.Fatal("objects go, and nobody knows whether they are to come back")
	}
	uid := r.configMap("a").GetUID()
	r.resume()
	r.inSync(1)
	r.settle(time.Minute)
	if o := r.configMap("a"); o == nil || o.GetUID() == uid || r.record("web").DeletionTimestamp != nil {
		t.Fatal("it is not made anew")
	}
}

// A power loss can leave a journal on which a work is live whose deletion was
// carried out and confirmed. Nothing may bring it back.
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
	// The digest shows it, and the list says what it is.
	reported := r.checkpoint(codec.Checkpoint{Cursor: at(9), Digest: &codec.Digest{}})
	if len(reported) != 1 || len(reported[0].list) != 1 {
		t.Fatalf("told %+v", reported)
	}
	r.checkpoint(codec.Checkpoint{Cursor: at(9), Digest: &codec.Digest{}, ListAnswered: true, Orphans: []string{"w-1"}})
	r.settle(time.Minute)
	r.expectValue("a", "")
	if r.record("web") != nil {
		t.Fatal("a work that nobody wants is recorded")
	}
}

// t1 A work takes over from another under its name, and is applied. t2 A power loss takes the
// journal back behind t1. t3 The agent loads the former work, and hears that the later one is
// deleted, and Orphan. Therefore the objects are released, and nothing removes them.
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
		t.Fatal("a work that nobody wants is recorded")
	}
	r.expectJournal()
}

func TestCore_AfterAListTheRestIsConfirmed(t *testing.T) {
	r := newJournaledRig(t)
	r.apply(hubWork("w-1", "web", 2, configMap("a", "1")))
	r.apply(hubWork("w-2", "orphan", 2, configMap("b", "1")))
	r.inSync(1)
	r.delete(hubWork("w-3", "other", 1)) // and a status
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

// A stock broker does not answer what it has no news about. So it is not told
// of anything that it has not sent since the start.
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
		t.Fatal("enforced what nobody confirmed")
	}
	r.handle(r.ocmEvent(w, codec.CreateRequest, nil))
	if r.record("web") == nil {
		t.Fatal("what the source sent again is wanted")
	}
	if list := r.subscribe(ocmAccepted); len(list) != 1 {
		t.Fatalf("listed %v", list)
	}
}
