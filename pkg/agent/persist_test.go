package agent

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/journal"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

var errFull error = syscall.ENOSPC

func (r *rig) value(name string) string {
	o := r.configMap(name)
	if o == nil {
		return ""
	}
	return o.Object["data"].(map[string]any)["k"].(string)
}

func (r *rig) expectValue(name, want string) {
	r.t.Helper()
	if got := r.value(name); got != want {
		r.t.Fatalf("ConfigMap %s has %q, want %q", name, got, want)
	}
}

func (r *rig) expectJournal(want ...string) {
	r.t.Helper()
	if got := r.journal.has(); !slices.Equal(got, want) {
		r.t.Fatalf("on the journal: %q, want %q", got, want)
	}
}

// inSync delivers a checkpoint with the digest of the held works.
func (r *rig) inSync(revision uint64) {
	r.t.Helper()
	d := r.core.set.Digest(nil)
	r.checkpoint(codec.Checkpoint{Cursor: at(revision), Digest: &d})
}

func TestCore_JournalComesFirst(t *testing.T) {
	r := newJournaledRig(t)
	var early []string
	r.journal.fail = func(op, id string) error {
		early = append(early, fmt.Sprint(op, " ", id, " ", r.value("a"), len(r.synced)))
		return nil
	}
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	r.inSync(1)
	r.apply(hubWork("w-1", "web", 2, configMap("a", "2")))
	r.inSync(2)
	want := []string{"put w-1 0", "drop  0", "reserve  10", "checkpoint e/t/1 10", "put w-1 11", "checkpoint e/t/2 21"}
	if !slices.Equal(early, want) {
		t.Fatalf("got %q, want %q", early, want)
	}
	expectReported(t, r.synced, slices.Concat(acked(1, firstDigest(r), ""), acked(2, held(r, "w-1"), "")))
	r.expectJournal("w-1")
	if r.journal.cursor != at(2) {
		t.Errorf("cursor %v", r.journal.cursor)
	}
}

// firstDigest returns the digest of the first ack.
func firstDigest(r *rig) *codec.Digest { return r.synced[0].ack.Digest }

func TestCore_RestartWhileTheBrokerIsAway(t *testing.T) {
	r := newJournaledRig(t)
	gone := hubWork("w-2", "gone", 1, configMap("b", "1"))
	gone.Spec.DeleteOption = &workv1.DeleteOption{
		PropagationPolicy: workv1.DeletePropagationPolicyTypeSelectivelyOrphan,
		SelectivelyOrphan: &workv1.SelectivelyOrphan{OrphaningRules: []workv1.OrphaningRule{{Resource: "configmaps", Namespace: "default", Name: "kept"}}},
	}
	gone.Spec.Workload.Manifests = append(gone.Spec.Workload.Manifests, hubWork("", "", 1, configMap("kept", "1")).Spec.Workload.Manifests...)
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	r.apply(gone)
	// The new spec is unusable, so the previous one stays in force.
	r.apply(hubWork("w-1", "web", 2))
	r.inSync(4)
	r.core.Disconnected(errAway)
	// A deletion without a spec arrives just before the process ends.
	r.core.Handle(t.Context(), r.event(gone, codec.DeleteRequest, func(e *codec.Event) { e.DataEncoded = nil }))

	r.start()
	r.f.Edit(r.ref("ConfigMap", "a"), func(o *unstructured.Unstructured) { o.Object["data"] = map[string]any{"k": "drift"} })
	r.settle(10 * time.Second)
	r.expectValue("a", "1")
	r.f.Remove(r.ref("ConfigMap", "a"))
	r.settle(time.Minute)
	r.expectValue("a", "1")
	if r.value("b") != "" || r.value("kept") == "" || r.record("gone") != nil {
		t.Fatal("a deletion that was received is to be carried out, with its delete options")
	}
	sent := len(r.sent)
	r.expectCursor(at(4))
	r.resume()
	r.settle(time.Second)
	if !r.statuses["w-2"].Deleted || len(r.sent) != sent+2 {
		t.Fatalf("%d statuses", len(r.sent)-sent)
	}
	r.expectStatus("w-1", "Applied=False/AppliedManifestWorkFailed: a work needs at least one manifest", workAvailable)
	r.expectJournal("w-1")
}

func TestCore_EntriesGoWithTheirWorks(t *testing.T) {
	r := newJournaledRig(t)
	first := hubWork("w-1", "web", 1, configMap("a", "1"))
	r.apply(first)
	r.apply(hubWork("w-2", "web", 1, configMap("a", "1"))) // the second work takes over the name
	r.settle(time.Second)
	r.expectJournal("w-2")

	// A crash between put and remove leaves both entries: the later work has the name.
	both := newJournaledRig(t)
	both.apply(first)
	kept := both.journal.entries["w-1"]
	both.apply(hubWork("w-2", "web", 1, configMap("a", "1")))
	both.journal.entries["w-1"] = kept
	both.start()
	if w := both.core.set.ByName("web").Live; w == nil || w.ResourceID != "w-2" || both.core.set.Get("w-1") != nil {
		t.Fatalf("got %+v", w)
	}
	both.settle(time.Second)
	both.expectJournal("w-2")

	// A failed removal of an entry is retried, unless the work exists again.
	w := hubWork("w-2", "web", 1, configMap("a", "1"))
	r.journal.fail = func(op, _ string) error {
		if op == "remove" || op == "renew" {
			return errors.New("broken")
		}
		return nil
	}
	r.delete(w)
	r.expectJournal("w-2")
	r.apply(hubWork("w-2", "web", 1, configMap("a", "again")))
	r.journal.fail = nil
	r.settle(time.Hour)
	r.expectJournal("w-2")
	r.journal.fail = func(op, _ string) error {
		if op == "remove" || op == "renew" {
			return errors.New("broken")
		}
		return nil
	}
	r.delete(w)
	r.journal.fail = nil
	r.settle(time.Hour)
	r.expectJournal()
}

func parse(t *testing.T, manifest string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON([]byte(manifest)); err != nil {
		t.Fatal(err)
	}
	return o
}

// logged counts the lines of a log that contain a text.
func logged(b *bytes.Buffer, text string) int { return strings.Count(b.String(), text) }

func TestCore_ReportsFullStateDirectory(t *testing.T) {
	r := newJournaledRig(t)
	var log bytes.Buffer
	r.log = slog.New(slog.NewTextHandler(&log, nil))
	r.restart()
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	r.inSync(1)
	r.journal.did = nil
	r.journal.fail = func(string, string) error { return errFull }
	r.apply(hubWork("w-1", "web", 2, configMap("a", "2")))
	r.apply(hubWork("w-2", "unusable", 1))
	r.expectValue("a", "2")
	full := "PersistFailed=True/StateDirectoryFull: The present spec is applied, but the agent could not store it: state directory: write /state/log: no space left on device. If the agent restarts while it is disconnected, it does not know this spec."
	r.expectStatus("w-1", workApplied, workAvailable, full)
	if c := condition(r.statuses["w-1"].Status.Conditions, "PersistFailed"); c.ObservedGeneration != 2 {
		t.Errorf("got %+v", c)
	}
	if condition(r.statuses["w-2"].Status.Conditions, "PersistFailed") == nil {
		t.Error("a work that cannot be used is not on the journal either")
	}
	since, sent := condition(r.statuses["w-1"].Status.Conditions, "PersistFailed").LastTransitionTime, len(r.sent)

	// The agent neither stores its cursor nor sends an ack, but continues in memory.
	reported := len(r.synced)
	r.inSync(2)
	r.settle(time.Hour)
	if len(r.synced) != reported || r.journal.cursor != at(1) || len(r.journal.did) != 0 {
		t.Fatalf("sent %+v, did %q", r.synced[reported:], r.journal.did)
	}
	r.expectCursor(at(2))
	if got := condition(r.statuses["w-1"].Status.Conditions, "PersistFailed"); !got.LastTransitionTime.Equal(&since) || len(r.sent) != sent {
		t.Errorf("got %+v, %d statuses", got, len(r.sent)-sent)
	}
	if n := logged(&log, "the state directory fails"); n != 1 || logged(&log, "works again") != 0 {
		t.Errorf("it is logged %d times\n%s", n, &log)
	}
	if r.core.Counts().Unsaved != 2 {
		t.Errorf("got %+v", r.core.Counts())
	}

	// The content on disk is unknown: nothing is appended before the log is compacted.
	r.journal.fail = func(op, _ string) error {
		if op == "renew" {
			return errFull
		}
		return nil
	}
	r.settle(2 * time.Minute)
	if condition(r.statuses["w-1"].Status.Conditions, "PersistFailed") == nil || len(r.journal.did) != 0 || r.journal.cursor != at(1) || logged(&log, "works again") != 0 {
		t.Errorf("it was not renewed, did %q", r.journal.did)
	}

	r.journal.fail = nil
	r.settle(2 * time.Minute)
	r.expectStatus("w-1", workApplied, workAvailable)
	r.expectStatus("w-2", "Applied=False/AppliedManifestWorkFailed: a work needs at least one manifest")
	expectReported(t, r.synced[reported:], acked(2, held(r, "w-1", "w-2"), ""))
	r.expectJournal("w-1", "w-2")
	if r.journal.cursor != at(2) || logged(&log, "the state directory fails") != 1 || logged(&log, "works again") != 1 || r.core.Counts().Unsaved != 0 {
		t.Errorf("cursor %v\n%s", r.journal.cursor, &log)
	}
	r.start()
	r.settle(time.Minute)
	r.expectValue("a", "2")
}

func TestCore_SurvivesStateDirectoryErrors(t *testing.T) {
	r := newJournaledRig(t)
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	r.apply(hubWork("w-2", "other", 1, configMap("b", "1")))
	r.inSync(3)

	// A work that was deleted in the meantime no longer counts as unsaved, even if its removal from disk failed.
	failing := ""
	r.journal.fail = func(op, _ string) error {
		if op == failing || failing == "all" {
			return errFull
		}
		return nil
	}
	failing = "put"
	r.deliver(hubWork("w-3", "third", 1, configMap("c", "1")))
	if got := r.core.Counts().Unsaved; got != 1 {
		t.Fatalf("%d unsaved", got)
	}
	r.settle(time.Minute) // the compacted log contains the work
	r.expectJournal("w-1", "w-2", "w-3")
	failing = "all"
	r.apply(hubWork("w-3", "third", 2, configMap("c", "2")))
	r.delete(hubWork("w-3", "third", 2))
	r.expectJournal("w-1", "w-2", "w-3")
	failing = "remove"
	r.settle(time.Minute)
	r.expectJournal("w-1", "w-2")
	if got := r.core.Counts().Unsaved; got != 0 {
		t.Fatalf("%d unsaved", got)
	}
	// The removal of the cursor fails and is retried.
	r.journal.fail = func(op, _ string) error {
		if op == "drop" {
			return errFull
		}
		return nil
	}
	r.core.Disconnected(errAway)
	r.subscribe(accepted)
	r.settle(time.Minute)
	if r.journal.cursor != at(3) {
		t.Fatal("the failure did not fail")
	}
	r.journal.fail = nil
	r.settle(2 * time.Minute)
	if r.journal.cursor != (codec.Cursor{}) {
		t.Fatalf("cursor %v", r.journal.cursor)
	}
}

// While a cursor is written, the broker is replaced by one that does not know the cursor.
func TestCore_DropsCursorRejectedDuringWrite(t *testing.T) {
	r := newJournaledRig(t)
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	r.journal.fail = func(op, _ string) error {
		if op == "checkpoint" {
			r.core.Disconnected(errAway)
			r.subscribe(accepted)
		}
		return nil
	}
	r.inSync(1)
	if r.journal.cursor != (codec.Cursor{}) || len(r.synced) != 0 {
		t.Fatalf("cursor %v, sent %+v", r.journal.cursor, r.synced)
	}
	r.journal.fail = nil
	r.inSync(2)
	if r.journal.cursor != at(2) {
		t.Fatalf("cursor %v", r.journal.cursor)
	}
}

func TestCore_RejectsUnloadableJournal(t *testing.T) {
	r := newJournaledRig(t)
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	c := r.core.config
	c.Cluster = "cluster2"
	r.journal.binding.Cluster = "cluster2" // by a bug
	other := NewCore(*c)
	if err := other.Start(testClusterUID); err != nil || other.Counts() != (Counts{}) {
		t.Fatalf("%v, took works of another cluster: %+v", err, other.Counts())
	}
	c.Journal = newerJournal{r.journal}
	var newer *journal.FormatError
	if err := NewCore(*c).Start(testClusterUID); !errors.As(err, &newer) {
		t.Fatalf("got %v", err)
	}
}

type newerJournal struct{ Journal }

func (newerJournal) Load(journal.Binding, func(codec.Event) error, func(string)) (journal.LoadResult, error) {
	return journal.LoadResult{}, &journal.FormatError{Path: "/state/binding", Format: 9}
}

// A status of the previous process may arrive after those of this one, whose clock is one day behind.
func TestCore_SequenceIDsOfTheProcessBefore(t *testing.T) {
	r := newJournaledRig(t)
	r.deliver(hubWork("w-1", "web", 1, configMap("a", "1")))
	r.reconcile(r.core.keyOf("web"))
	before, ok := r.core.NextReport("w-1")
	if !ok {
		t.Fatal("there is no status")
	}
	r.now = r.now.Add(-24 * time.Hour)
	r.restart()
	r.apply(hubWork("w-1", "web", 2, configMap("a", "2")))
	late, err := manifestwork.DecodeStatus(before.Event)
	if err != nil {
		t.Fatal(err)
	}
	if newer, err := codec.CompareSequence(late.SequenceID, r.statuses["w-1"].SequenceID); err != nil || !newer {
		t.Fatalf("%s is not above %s: %v", r.statuses["w-1"].SequenceID, late.SequenceID, err)
	}

	// Sequence ids are reserved in advance, not per status. A failed reservation holds back no status.
	r.journal.did = nil
	for n := range int64(10) {
		r.apply(hubWork("w-1", "web", 3+n, configMap("a", fmt.Sprint(n))))
	}
	if n := len(slices.DeleteFunc(r.journal.did, func(op string) bool { return op != "reserve " })); n > 1 {
		t.Errorf("%d reservations in ten seconds", n)
	}
	r.now = r.now.Add(25 * time.Hour)
	r.journal.fail = func(op, _ string) error {
		if op == "reserve" {
			return errFull
		}
		return nil
	}
	r.apply(hubWork("w-1", "web", 20, configMap("a", "20")))
	if s := r.statuses["w-1"]; s.Version != 20 {
		t.Errorf("got version %d", s.Version)
	}
}

func TestCore_RestartRepeatsNoStatus(t *testing.T) {
	run := func(name string, want int, change func(*rig), resume func(r *rig, highest string)) {
		t.Run(name, func(t *testing.T) {
			r := newJournaledRig(t)
			r.outcome = codec.OutcomeAccepted
			r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
			r.apply(hubWork("w-2", "other", 1, configMap("b", "1")))
			r.apply(hubWork("w-2", "other", 2, configMap("b", "2"))) // another order of conditions
			r.inSync(3)
			r.core.Stop(t.Context())
			highest := r.sent[len(r.sent)-1].SequenceID
			r.now = r.now.Add(-24 * time.Hour)
			r.start()
			change(r)
			r.settle(time.Minute)
			before := len(r.sent)
			resume(r, highest)
			r.settle(time.Minute)
			if got := len(r.sent) - before; got != want {
				t.Fatalf("%d statuses were sent, want %d", got, want)
			}
			for _, s := range r.sent[before:] {
				if newer, err := codec.CompareSequence(highest, s.SequenceID); err != nil || !newer {
					t.Errorf("sequence id %s is not above %s: %v", s.SequenceID, highest, err)
				}
			}
		})
	}
	nothing := func(*rig) {}
	byCursor := func(r *rig, highest string) {
		r.resume()
		r.settle(time.Minute)
		r.checkpoint(codec.Checkpoint{Cursor: at(3), Digest: held(r, "w-1", "w-2"), HighestSequenceID: highest})
	}
	run("resumed by cursor", 0, nothing, byCursor)
	run("what changed is sent", 1, func(r *rig) {
		r.f.Refuse = func(c clustertest.Call) error {
			if c.Verb == "update" && c.Ref.Name == "b" {
				return apierrors.NewForbidden(c.Ref.GroupResource(), "b", errDenied)
			}
			return nil
		}
		r.f.Edit(r.ref("ConfigMap", "b"), func(o *unstructured.Unstructured) { o.Object["data"] = map[string]any{"k": "3"} })
	}, byCursor)
	run("something was accepted later", 2, nothing, func(r *rig, _ string) { byCursor(r, "9000000000000000000"[:18]) })
	run("the broker lost some", 2, nothing, func(r *rig, _ string) { byCursor(r, "") })
	run("another history", 2, nothing, func(r *rig, _ string) { r.subscribe(accepted) })
	run("nothing was noted", 2, func(r *rig) {
		r.journal.reported = journal.Reported{}
		r.now = r.now.Add(25 * time.Hour)
		r.start()
	}, byCursor)
}

// Scenario:
//
//	t1: version 1 of a work is applied and answered; version 2 is received.
//	t2: the cluster is released; the broker drops the record with the answer.
//	t3: the hub is restored and its cluster served again; version 1 arrives unchanged.
//
// Result: it is answered again although it equals the last answer. Its tag identifies the spec, its revision
// the acceptance.
func TestCore_ReportsStatusOfRevertedSpec(t *testing.T) {
	first, second := hubWork("w-1", "web", 1, configMap("a", "1")), hubWork("w-1", "web", 2, configMap("a", "2"))
	restart := func(r *rig, _ string) {
		r.start()
		r.resume()
	}
	// The broker has no record of the works that the agent holds.
	released := func(r *rig, highest string) {
		restart(r, highest)
		for _, cp := range []codec.Checkpoint{{}, {ListAnswered: true, Orphans: []string{"w-1"}}} {
			cp.Cursor, cp.Digest, cp.HighestSequenceID = at(2), &codec.Digest{}, highest
			r.checkpoint(cp)
		}
	}
	nothing := func(*rig, string) {}
	for name, c := range map[string]struct{ between, after func(*rig, string) }{
		"the same process":                {nothing, nothing},
		"the next process":                {released, nothing},
		"one that ends before the answer": {nothing, restart},
	} {
		t.Run(name, func(t *testing.T) {
			r := newJournaledRig(t)
			r.outcome = codec.OutcomeAccepted
			r.apply(first)
			r.inSync(1)
			r.settle(time.Minute) // the agent writes the accepted statuses
			before := len(r.sent)
			highest := r.sent[before-1].SequenceID

			r.deliver(second) // the next spec arrives before this one is applied
			c.between(r, highest)
			r.deliver(first)
			c.after(r, highest)
			r.checkpoint(codec.Checkpoint{Cursor: at(3), Digest: held(r, "w-1"), HighestSequenceID: highest})
			r.settle(time.Minute)
			if got := r.sent[before:]; len(got) != 1 || got[0].Version != 1 {
				t.Fatalf("sent %+v, want the status of version 1", got)
			}
			r.expectValue("a", "1")
		})
	}
}

// Scenario:
//
//	t1: version 1 of a work is applied, and the broker has the answer.
//	t2: the cluster is disconnected; the hub continues with version 2 and returns to version 1, so the broker
//	has a record without the answer.
//	t3: the agent receives version 1 again, which it holds already.
//	t4: the cursor passes it, and the process ends before the answer is sent.
//
// Result: its new revision is stored before the cursor, and the next process answers.
func TestCore_AnswersRepeatedEvent_AlsoAfterRestart(t *testing.T) {
	for name, ends := range map[string]bool{"the same process": false, "one that ends before the answer": true} {
		t.Run(name, func(t *testing.T) {
			r := newJournaledRig(t)
			r.outcome = codec.OutcomeAccepted
			w := hubWork("w-1", "web", 1, configMap("a", "1"))
			r.apply(w)
			r.inSync(1)
			r.settle(time.Minute) // the agent writes the accepted statuses
			before := len(r.sent)
			highest := r.sent[before-1].SequenceID
			inSync := codec.Checkpoint{Cursor: at(3), Digest: held(r, "w-1"), HighestSequenceID: highest}

			r.revision++ // the revision of the version in between
			r.deliver(w)
			if ends {
				clear(r.sends) // the process ends before it sends the answer
				r.checkpoint(inSync)
				r.saveNow()
				r.expectCursor(at(3))
				r.start()
				r.resume()
			}
			r.checkpoint(inSync)
			r.settle(time.Minute)
			if got := r.sent[before:]; len(got) != 1 || got[0].Version != 1 {
				t.Fatalf("sent %+v, want the status once more", got)
			}
			r.settle(time.Minute) // the agent writes the accepted statuses
			highest = r.sent[before].SequenceID
			r.start()
			r.resume()
			inSync.HighestSequenceID = highest
			r.checkpoint(inSync)
			r.settle(time.Minute)
			if got := r.sent[before+1:]; len(got) != 0 {
				t.Errorf("sent again %+v", got)
			}
		})
	}
}

// TestCore_OnRealFiles uses a journal on disk, as the program does.
func TestCore_OnRealFiles(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t)
	for generation := int64(1); generation < 4; generation++ {
		j, err := journal.Open(journal.Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		r.files = j
		r.start()
		r.settle(time.Second)
		if generation == 1 {
			r.subscribe(accepted)
		} else {
			r.expectCursor(at(uint64(generation - 1)))
			r.resume()
		}
		w := hubWork("w-1", "web", generation, configMap("a", fmt.Sprint(generation)))
		r.apply(w)
		r.inSync(uint64(generation))
		if generation == 3 {
			r.delete(w)
			r.inSync(4)
		}
		r.core.Stop(t.Context())
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		r.f.Remove(r.ref("ConfigMap", "a"))
	}
	j, err := journal.Open(journal.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	r.files = j
	r.start()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if log, err := os.ReadFile(filepath.Join(dir, "log")); err != nil || bytes.Contains(log, []byte("ConfigMap")) {
		t.Errorf("left behind: %q, %v", log, err)
	}
}
