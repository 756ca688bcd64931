package interop

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// These tests run the OCM broker with the Hawser agent. If a test lets the broker "send" an event that no
// backend would send, it passes the event to HandleEvent.

// send lets the OCM broker send an event of src1 about a work, after change modified it.
func (b *ocmBroker) send(action codec.Action, w *workv1.ManifestWork, change func(*event)) {
	b.t.Helper()
	e := shown(specOf(b.t, src1, action, w))
	if change != nil {
		change(e)
	}
	b.do(command{Do: "send", Event: e})
}

// startPair runs an OCM broker and a Hawser agent, with a cable between them. It returns when the broker has
// answered the agent's list.
func startPair(t *testing.T) (*ocmBroker, *ourAgent, *cable) {
	t.Helper()
	b := startOCMBroker(t, "")
	wire := newCable(t, b.addr)
	a := startOurAgent(t, wire.addr, clustertest.New())
	b.await(t, 0, "the agent's list", publishedLine("spec.resync_request"))
	return b, a, wire
}

// statusOfWork matches statuses of a work that the broker received.
func statusOfWork(id string, match func(report manifestwork.StatusReport, l outputLine) bool) func(outputLine) bool {
	return func(l outputLine) bool {
		if l.What != "published" || l.Event.Extensions[codec.ExtResourceID] != id {
			return false
		}
		s, err := l.Event.report()
		return err == nil && match(s, l)
	}
}

// report decodes a status event.
func (e *event) report() (manifestwork.StatusReport, error) {
	var cluster, original string
	rest := map[string]any{}
	for name, v := range e.Extensions {
		switch name {
		case codec.ExtClusterName:
			cluster, _ = v.(string)
		case codec.ExtOriginalSource:
			original, _ = v.(string)
		default:
			if n, ok := v.(float64); ok {
				v = int32(n)
			}
			rest[name] = v
		}
	}
	built, err := codec.Builder{
		ID: e.ID, Source: e.Source, Type: e.Type, Time: time.Now(), Cluster: cluster, OriginalSource: original,
		Extensions: rest, ContentType: e.ContentType, Data: []byte(e.Data),
	}.Event()
	if err != nil {
		return manifestwork.StatusReport{}, err
	}
	return manifestwork.DecodeStatus(built)
}

func hasApplied(s manifestwork.StatusReport, version int64) bool {
	return s.Version == version && meta.IsStatusConditionTrue(s.Status.Conditions, workv1.WorkApplied)
}

// TestC11_NoVersion_IsDropped: the OCM broker announces a deletion without a version for every id that it does
// not know. The agent drops it, and a spec without a version too.
func TestC11_NoVersion_IsDropped(t *testing.T) {
	t.Parallel()
	b, a, wire := startPair(t)
	b.put(withID("stays", newWork(cluster1, "stays", 1)))
	a.awaitValue("stays", "1")
	b.send(codec.UpdateRequest, withID("stays", newWork(cluster1, "stays", 2)), func(e *event) { delete(e.Extensions, codec.ExtResourceVersion) })
	b.send(codec.CreateRequest, withID("none", newWork(cluster1, "none", 1)), func(e *event) { delete(e.Extensions, codec.ExtResourceVersion) })
	b.do(command{Do: "drop", Name: "stays"})
	from := b.position()
	wire.cut()
	wire.plug(b.addr)
	b.await(t, from, "the agent's list", publishedLine("spec.resync_request"))
	b.put(withID("barrier", newWork(cluster1, "barrier", 1)))
	a.awaitValue("barrier", "1")
	if got := []string{a.value("stays"), a.value("none")}; !slices.Equal(got, []string{"1", ""}) {
		t.Errorf("values %q, want the first as it was and the second absent", got)
	}
	if b.await(t, from, "a status", statusOfWork("barrier", func(manifestwork.StatusReport, outputLine) bool { return true })); len(
		b.since(0, statusOfWork("stays", func(s manifestwork.StatusReport, _ outputLine) bool { return s.Deleted }))) != 0 {
		t.Error("the agent reported the work as deleted")
	}
}

// publishedLine matches events of a kind that the OCM broker received.
func publishedLine(kind string) func(outputLine) bool {
	return func(l outputLine) bool { return l.What == "published" && l.Event.Type == works+"."+kind }
}

func TestC12_OtherCluster_IsIgnored(t *testing.T) {
	t.Parallel()
	b := startScripted(t)
	a := startOurAgent(t, b.addr, clustertest.New())
	b.send <- specOf(t, src1, codec.CreateRequest, withID("other", newWork(cluster2, "other", 1)))
	b.send <- specOf(t, src1, codec.CreateRequest, withID("w", newWork(cluster1, "w", 1)))
	a.awaitValue("w", "1")
	b.wire.await(t, 0, "a status", func(p passed) bool { return p.id() == "w" })
	if got := a.value("other"); got != "" || a.record("other") != nil {
		t.Errorf("the work of another cluster was applied: %q", got)
	}
	if got := b.wire.since(0, func(p passed) bool { return p.id() == "other" }); len(got) != 0 {
		t.Errorf("the work of another cluster was reported: %v", got)
	}
}

// TestC13_UnusableWork_IsReported: OCM agents drop such works silently. The Hawser agent leaves the objects
// unchanged and reports the error in the status.
func TestC13_UnusableWork_IsReported(t *testing.T) {
	t.Parallel()
	b, a, _ := startPair(t)
	b.put(withID("w", newWork(cluster1, "w", 1)))
	a.awaitValue("w", "1")
	for n, c := range []struct {
		name      string
		manifests []workv1.Manifest
	}{
		{"no manifests", nil},
		{"too large", []workv1.Manifest{configMap("w", "large", 501<<10)}},
		{"generateName", []workv1.Manifest{{RawExtension: configMap("w", "1", 0).RawExtension}}},
	} {
		version := int64(n + 2)
		w := withID("w", newWork(cluster1, "w", version))
		w.Spec.Workload.Manifests = c.manifests
		if c.name == "generateName" {
			w.Spec.Workload.Manifests[0].Raw = []byte(strings.Replace(string(w.Spec.Workload.Manifests[0].Raw), `"name"`, `"generateName"`, 1))
		}
		b.put(w)
		b.await(t, 0, c.name+" to be reported", statusOfWork("w", func(s manifestwork.StatusReport, _ outputLine) bool {
			return s.Version == version && meta.IsStatusConditionFalse(s.Status.Conditions, workv1.WorkApplied)
		}))
		if got := a.value("w"); got != "1" {
			t.Errorf("%s: value %q, want the previous one", c.name, got)
		}
	}
	b.put(withID("w", newWork(cluster1, "w", 9)))
	a.awaitValue("w", "9")
}

// TestC14_Versions_Decide: with an OCM broker versions decide. Lower versions are stale. Equal versions, and
// specs without a version, are applied.
func TestC14_Versions_Decide(t *testing.T) {
	t.Parallel()
	b, a, _ := startPair(t)
	send := func(version int64, value string) {
		w := withID("w", newWork(cluster1, "w", version))
		w.Spec.Workload.Manifests[0] = configMap("w", value, 0)
		b.send(codec.UpdateRequest, w, nil)
	}
	send(5, "five")
	a.awaitValue("w", "five")
	finalizers := a.record("w").Finalizers
	send(4, "four")
	send(5, "five again")
	a.awaitValue("w", "five again")
	send(4, "four")
	send(0, "unversioned")
	a.awaitValue("w", "unversioned")
	if diff := cmp.Diff(finalizers, a.record("w").Finalizers); diff != "" || len(finalizers) == 0 {
		t.Errorf("finalizers (-first +last):\n%s", diff)
	}
}

func TestC15_KnownIDWithAnotherName_Moves(t *testing.T) {
	t.Parallel()
	b, a, _ := startPair(t)
	b.put(withID("w", newWork(cluster1, "before", 1)))
	a.awaitValue("before", "1")
	b.put(withID("w", newWork(cluster1, "after", 2)))
	a.awaitValue("after", "2")
	a.awaitValue("before", "")
	eventually(t, "one record", func() bool { return a.record("before") == nil && a.record("after") != nil })
}

func TestC16_NoMetadata_IsNamedAfterItsID(t *testing.T) {
	t.Parallel()
	b, a, _ := startPair(t)
	id := uuid.NewString()
	b.send(codec.CreateRequest, withID(id, newWork(cluster1, "w", 1)), func(e *event) { e.Extensions[codec.ExtMetadata] = "" })
	a.awaitValue("w", "1")
	if a.record(id) == nil {
		t.Error("there is no AppliedManifestWork of that name")
	}
	b.await(t, 0, "its status", statusOfWork(id, func(s manifestwork.StatusReport, _ outputLine) bool { return s.Name == id && hasApplied(s, 1) }))
}

func TestC17_DeletionOfUnknownWork_IsConfirmed(t *testing.T) {
	t.Parallel()
	b, _, _ := startPair(t)
	b.send(codec.DeleteRequest, deleting(withID("unknown", newWork(cluster1, "unknown", 3))), nil)
	b.await(t, 0, "the report of its end", statusOfWork("unknown", func(s manifestwork.StatusReport, _ outputLine) bool { return s.Deleted }))
}

// TestC18_EndOfWork_IsReportedUntilTaken: the end of a work is reported when the last object is gone, and again
// until the broker accepts the report.
func TestC18_EndOfWork_IsReportedUntilTaken(t *testing.T) {
	t.Parallel()
	b, a, _ := startPair(t)
	w := withID("w", newWork(cluster1, "w", 1))
	b.put(w)
	a.awaitValue("w", "1")
	b.await(t, 0, "its status", statusOfWork("w", func(s manifestwork.StatusReport, _ outputLine) bool { return hasApplied(s, 1) }))
	ref := a.cluster.Ref("v1", "ConfigMap", "default", "w")
	a.cluster.Edit(ref, func(o *unstructured.Unstructured) { o.SetFinalizers([]string{hold}) })

	b.put(deleting(w))
	b.await(t, 0, "the report that it is being deleted", statusOfWork("w", func(s manifestwork.StatusReport, _ outputLine) bool {
		return meta.IsStatusConditionTrue(s.Status.Conditions, "Deleting")
	}))
	if a.record("w") == nil || a.value("w") == "" {
		t.Error("the record or the held object was deleted")
	}
	gone := statusOfWork("w", func(s manifestwork.StatusReport, _ outputLine) bool { return s.Deleted })
	if early := b.since(0, gone); len(early) != 0 {
		t.Errorf("its end was reported too early: %v", early)
	}
	for _, how := range []string{"error", "conflict"} {
		b.do(command{Do: "refuse", Count: 1, Text: how})
		from := b.position()
		if how == "error" {
			a.cluster.Edit(ref, func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
		} else {
			b.put(deleting(withID("w", newWork(cluster1, "w", 1))))
		}
		refused := b.await(t, from, "the report", gone)
		taken := b.awaitCount(t, from, 2, "the report again", gone)[1]
		if refused.Error == "" || taken.Error != "" {
			t.Errorf("%s: answers %q and %q, want a refusal first", how, refused.Error, taken.Error)
		}
	}
	eventually(t, "the end of the record", func() bool { return a.record("w") == nil && a.value("w") == "" })
}

func TestC19_StatusEvent_HasItsAttributes(t *testing.T) {
	t.Parallel()
	b, _, _ := startPair(t)
	var lines []outputLine
	for version := range int64(2) {
		b.put(withID("w", newWork(cluster1, "w", version+1)))
		lines = append(lines, b.await(t, 0, "its status", statusOfWork("w", func(s manifestwork.StatusReport, _ outputLine) bool { return hasApplied(s, version+1) })))
	}
	sequence := ""
	for n, l := range lines {
		s, err := l.Event.report()
		if err != nil {
			t.Fatal(err)
		}
		hash, err := manifestwork.StatusHash(s.Status)
		if err != nil {
			t.Fatal(err)
		}
		var m struct{ Name string }
		text, _ := l.Event.Extensions[codec.ExtMetadata].(string)
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			t.Fatal(err)
		}
		got := map[string]any{"type": l.Event.Type, "name": m.Name, "logtracing": l.Event.Extensions[codec.ExtLogTracing]}
		for _, name := range []string{codec.ExtClusterName, codec.ExtOriginalSource, codec.ExtResourceVersion, codec.ExtStatusHash} {
			got[name] = l.Event.Extensions[name]
		}
		want := map[string]any{
			"type": works + ".status.update_request", "name": "w", "logtracing": "{}",
			codec.ExtClusterName: cluster1, codec.ExtOriginalSource: src1, codec.ExtResourceVersion: float64(n + 1), codec.ExtStatusHash: hash,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("status %d (-want +got):\n%s", n, diff)
		}
		if newer, err := codec.CompareSequence(sequence, s.SequenceID); !newer || err != nil {
			t.Errorf("status %d: sequence id %s after %s (%v)", n, s.SequenceID, sequence, err)
		}
		sequence = s.SequenceID
	}
}

// requesting returns the event with which a source requests statuses.
func requesting(t *testing.T, cluster string, hashes ...codec.StatusHash) codec.Event {
	t.Helper()
	e, err := codec.NewStatusResyncRequest(codec.ResyncParams{
		ID: uuid.NewString(), Time: time.Now(), Source: src1, Cluster: cluster, DataType: codec.ManifestBundles,
	}, hashes)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestC23_C24_HashList_SelectsAnswers: three works are reported, and only the requested statuses are
// sent.
func TestC23_C24_HashList_SelectsAnswers(t *testing.T) {
	t.Parallel()
	b, _, _ := startPair(t)
	hashes := map[string]string{}
	for _, id := range []string{"u1", "u2", "u3"} {
		b.put(withID(id, newWork(cluster1, id, 1)))
		l := b.await(t, 0, "its status", statusOfWork(id, func(s manifestwork.StatusReport, _ outputLine) bool { return hasApplied(s, 1) }))
		hashes[id], _ = l.Event.Extensions[codec.ExtStatusHash].(string)
	}
	for _, c := range []struct {
		name string
		list []codec.StatusHash
		want []string
	}{
		{"C23: an empty list", nil, []string{"u1", "u2", "u3"}},
		{"C24: equal, different, not listed", []codec.StatusHash{{ResourceID: "u1", StatusHash: hashes["u1"]}, {ResourceID: "u2", StatusHash: "another"}}, []string{"u2"}},
	} {
		from := b.position()
		b.do(command{Do: "send", Event: shown(requesting(t, cluster1, c.list...))})
		// The status of one more work arrives after all answers.
		b.awaitCount(t, from, len(c.want), "the answers to "+c.name, publishedLine("status.resync_response"))
		version := int64(from)
		b.put(withID("barrier", newWork(cluster1, "barrier", version)))
		b.await(t, from, "the status of one more", statusOfWork("barrier", func(s manifestwork.StatusReport, _ outputLine) bool { return hasApplied(s, version) }))
		got := map[string]bool{}
		for _, l := range b.since(from, publishedLine("status.resync_response")) {
			id, _ := l.Event.Extensions[codec.ExtResourceID].(string)
			got[id] = true
			if l.Event.Extensions[codec.ExtStatusHash] != hashes[id] {
				t.Errorf("%s: the answer for %s has hash %v, before %s", c.name, id, l.Event.Extensions[codec.ExtStatusHash], hashes[id])
			}
		}
		if diff := cmp.Diff(c.want, slices.Sorted(maps.Keys(got))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// TestC25_ForeignOrNoCluster_IsAnswered: the receiver of a request answers it, whatever cluster the request
// names.
func TestC25_ForeignOrNoCluster_IsAnswered(t *testing.T) {
	t.Parallel()
	b := startScripted(t)
	startOurAgent(t, b.addr, clustertest.New())
	b.send <- specOf(t, src1, codec.CreateRequest, withID("w", newWork(cluster1, "w", 1)))
	b.wire.await(t, 0, "its status", func(p passed) bool { return p.id() == "w" })
	for _, cluster := range []string{"", cluster2} {
		from := b.wire.position()
		b.send <- requesting(t, cluster)
		b.wire.await(t, from, "the answer", func(p passed) bool { return published("status.resync_response")(p) && p.id() == "w" })
	}
}

// TestC26_Subscription_IsFollowedByOneList: after each subscription the Hawser agent lists its works once.
func TestC26_Subscription_IsFollowedByOneList(t *testing.T) {
	t.Parallel()
	b, a, wire := startPair(t)
	first := b.await(t, 0, "the first list", publishedLine("spec.resync_request"))
	b.put(withID("u1", newWork(cluster1, "one", 3)))
	b.put(withID("u2", newWork(cluster1, "two", 7)))
	a.awaitValue("one", "3")
	a.awaitValue("two", "7")
	from := b.position()
	wire.cut()
	wire.plug(b.addr)
	second := b.await(t, from, "the second list", publishedLine("spec.resync_request"))
	for n, c := range []struct {
		got  outputLine
		want map[string]int64
	}{{first, map[string]int64{}}, {second, map[string]int64{"u1": 3, "u2": 7}}} {
		list, err := codec.DecodeVersions([]byte(c.got.Event.Data))
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]int64{}
		for _, v := range list {
			got[v.ResourceID] = v.ResourceVersion
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("list %d (-want +got):\n%s", n+1, diff)
		}
		if source, ok := c.got.Event.Extensions[codec.ExtOriginalSource]; source != "" || !ok || c.got.Event.Extensions[codec.ExtClusterName] != cluster1 {
			t.Errorf("list %d has attributes %v, want an empty %s", n+1, c.got.Event.Extensions, codec.ExtOriginalSource)
		}
	}
	b.put(withID("u3", newWork(cluster1, "three", 1)))
	a.awaitValue("three", "1")
	if all, streams := b.since(0, publishedLine("spec.resync_request")), b.since(0, what("stream")); len(all) != len(streams) {
		t.Errorf("%d lists in %d subscriptions", len(all), len(streams))
	}
}

// TestC58_ForeignSource_ChangesNothing: events of another source about a work are ignored, also with an OCM
// broker.
func TestC58_ForeignSource_ChangesNothing(t *testing.T) {
	t.Parallel()
	b, a, _ := startPair(t)
	w := withID("w", newWork(cluster1, "w", 1))
	b.put(w)
	a.awaitValue("w", "1")
	foreign := func(e *event) { e.Source = src2 }
	b.send(codec.UpdateRequest, withID("w", newWork(cluster1, "w", 2)), foreign)
	b.send(codec.DeleteRequest, deleting(withID("w", newWork(cluster1, "w", 2))), foreign)
	b.send(codec.CreateRequest, withID("other", newWork(cluster1, "other", 1)), foreign)
	a.awaitValue("other", "1")
	if got := a.value("w"); got != "1" {
		t.Errorf("value %q, want the one of the owner", got)
	}
}

// TestC59_SourceUnreachable_ObjectsStay: an agent that starts without a reachable source or broker changes
// nothing, as long as that lasts.
func TestC59_SourceUnreachable_ObjectsStay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := testkit.StartBroker(t, testkit.Options{})
		source, err := b.Dialer(identity.Identity{Role: identity.Source, Name: src1}).Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer source.Close()
		(&client{Conn: source, t: t}).publishWork(src1, codec.CreateRequest, withID("w", newWork(cluster1, "w", 1)))

		dialer, cluster := b.Dialer(identity.Identity{Role: identity.Agent, Name: cluster1}), clustertest.New()
		first := runOurAgent(t, dialer, cluster)
		<-time.After(time.Minute)
		first.end()
		if first.value("w") != "1" {
			t.Fatalf("value %q, want 1", first.value("w"))
		}
		cluster.TakeCalls()
		dialer.Cut()
		second := runOurAgent(t, dialer, cluster)
		<-time.After(48 * time.Hour)
		if second.value("w") != "1" || second.record("w") == nil {
			t.Error("the objects were deleted")
		}
		for _, c := range cluster.TakeCalls() {
			if c.Verb == "delete" {
				t.Errorf("the agent called %s", c)
			}
		}
		second.end()
	})
}
