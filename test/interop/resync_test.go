package interop

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

const cluster1, cluster2 = "cluster1", "cluster2"

// put stores a work in the OCM broker, as a publish of src1 does.
func (b *ocmBroker) put(w *workv1.ManifestWork) {
	b.t.Helper()
	b.do(command{Do: "put", Event: shown(specOf(b.t, src1, codec.CreateRequest, w))})
}

// publishWork publishes a work as an OCM source does.
func (p *client) publishWork(source string, action codec.Action, w *workv1.ManifestWork) string {
	p.t.Helper()
	return p.publish(specOf(p.t, source, action, w))
}

// settle returns when the broker has nothing left to send to the OCM agent. The broker has then compared that
// many lists of agents, and a work published now has arrived.
func (b *ourBroker) settle(t testing.TB, src *client, a *ocmAgent, lists float64) {
	t.Helper()
	b.awaitMetric(t, lists, resyncs, string(codec.Spec))
	last := withID("last-"+t.Name(), newWork(a.cluster, "last", 1))
	src.publishWork(src1, codec.CreateRequest, last)
	eventually(t, "the last work", func() bool { _, has := a.works()[string(last.UID)]; return has })
	eventually(t, "empty delivery queues", func() bool { return b.metric(t, queuedRecords) == 0 })
}

const queuedRecords = "hawser_broker_delivery_queue_records"

// received returns the ids of the events that the agent received from a position on, sorted.
func (a *ocmAgent) received(from int) []string {
	var ids []string
	for _, l := range a.since(from, what("received")) {
		id, _ := l.Event.Extensions[codec.ExtResourceID].(string)
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// TestC27_ListedVersions_NewerIsSent: an OCM agent moves from an OCM broker to a Hawser broker, by a switch of
// the address. It gets exactly the works that it lacks or holds in an older version.
func TestC27_ListedVersions_NewerIsSent(t *testing.T) {
	t.Parallel()
	b, ocm := startBroker(t), startOCMBroker(t, "")
	wire := newCable(t, ocm.addr)
	agent := startAgent(t, cluster1, wire.addr)
	for id, version := range map[string]int64{"older": 4, "same": 5, "newer": 6} {
		ocm.put(withID(id, newWork(cluster1, id, version)))
	}
	for _, id := range []string{"older", "same", "newer"} {
		agent.awaitAdded(id)
	}
	src := b.connect(t, pki.Source, src1)
	for _, id := range []string{"older", "same", "newer", "absent"} {
		src.publishWork(src1, codec.CreateRequest, withID(id, newWork(cluster1, id, 5)))
	}

	from := agent.position()
	wire.cut()
	wire.plug(b.addr)
	b.settle(t, src, agent, 1)

	if diff := cmp.Diff([]string{"absent", "last-" + t.Name(), "older"}, agent.received(from)); diff != "" {
		t.Errorf("events that the agent got (-want +got):\n%s", diff)
	}
	versions := map[string]int64{}
	for id, w := range agent.works() {
		versions[id] = w.Generation
	}
	want := map[string]int64{"older": 5, "same": 5, "newer": 6, "absent": 5, "last-" + t.Name(): 1}
	if diff := cmp.Diff(want, versions); diff != "" {
		t.Errorf("versions that the agent holds (-want +got):\n%s", diff)
	}
}

// TestC28_Unversioned_IsAlwaysSent: a work without versions is sent at every resync, whatever the agent lists.
func TestC28_Unversioned_IsAlwaysSent(t *testing.T) {
	t.Parallel()
	b, ocm := startBroker(t), startOCMBroker(t, "")
	wire := newCable(t, ocm.addr)
	agent := startAgent(t, cluster1, wire.addr)
	ocm.put(withID("zero", newWork(cluster1, "zero", 0)))
	ocm.put(withID("seven", newWork(cluster1, "seven", 7)))
	agent.awaitAdded("zero")
	agent.awaitAdded("seven")
	src := b.connect(t, pki.Source, src1)
	for _, id := range []string{"zero", "seven"} {
		src.publishWork(src1, codec.CreateRequest, withID(id, newWork(cluster1, id, 0)))
	}

	from := agent.position()
	wire.cut()
	wire.plug(b.addr)
	b.settle(t, src, agent, 1)

	if diff := cmp.Diff([]string{"last-" + t.Name(), "seven", "zero"}, agent.received(from)); diff != "" {
		t.Errorf("events that the agent got (-want +got):\n%s", diff)
	}
	if got := valueOf(t, agent.works()["seven"]); got != "0" {
		t.Errorf("value of work seven is %s, want 0: unversioned is never stale", got)
	}
}

// TestC29_Deleting_IsAlwaysSent: a deletion is sent to the agent, whatever version it lists.
func TestC29_Deleting_IsAlwaysSent(t *testing.T) {
	t.Parallel()
	b, ocm := startBroker(t), startOCMBroker(t, "")
	wire := newCable(t, b.addr)
	agent := startAgent(t, cluster1, wire.addr)
	src := b.connect(t, pki.Source, src1)
	w := withID("doomed", newWork(cluster1, "doomed", 5))
	src.publishWork(src1, codec.CreateRequest, w)
	agent.awaitAdded("doomed")
	agent.finalizers("doomed", "test.hawser.dev/hold")

	wire.cut()
	wire.plug(ocm.addr)
	ocm.put(withID("doomed", newWork(cluster1, "doomed", 6)))
	agent.await(t, 0, "version 6", func(l outputLine) bool { return ofID("modified", "doomed")(l) && l.Work.Generation == 6 })
	wire.cut()
	src.publishWork(src1, codec.DeleteRequest, deleting(w))
	from := agent.position()
	wire.plug(b.addr)

	l := agent.await(t, from, "the deletion", ofID("received", "doomed"))
	if l.Error != "" || l.Event.Extensions[codec.ExtDeletionTimestamp] == nil || l.Event.Extensions[codec.ExtResourceVersion] != 5.0 {
		t.Errorf("got %s, want a deletion of version 5 that the agent can decode", l)
	}
	agent.finalizers("doomed")
	agent.await(t, from, "the end of the work", ofID("deleted", "doomed"))
}

// TestC30_UnknownID_IsNotDeleted: OCM sources and brokers announce the deletion of every id that they do not
// know. The Hawser broker sends no deletion: the agent keeps the work, and the broker counts it.
func TestC30_UnknownID_IsNotDeleted(t *testing.T) {
	t.Parallel()
	b, ocm := startBroker(t), startOCMBroker(t, "")
	wire := newCable(t, ocm.addr)
	agent := startAgent(t, cluster1, wire.addr)
	ocm.put(withID("unlisted", newWork(cluster1, "unlisted", 3)))
	agent.awaitAdded("unlisted")
	src := b.connect(t, pki.Source, src1)
	src.publishWork(src1, codec.CreateRequest, withID("known", newWork(cluster1, "known", 1)))

	from := agent.position()
	wire.cut()
	wire.plug(b.addr)
	b.settle(t, src, agent, 1)

	if diff := cmp.Diff([]string{"known", "last-" + t.Name()}, agent.received(from)); diff != "" {
		t.Errorf("events that the agent got (-want +got):\n%s", diff)
	}
	if w, ok := agent.works()["unlisted"]; !ok || w.DeletionTimestamp != nil {
		t.Errorf("the orphan work is missing or deleted: %v", w.ObjectMeta)
	}
	if n := b.metric(t, orphans); n != 1 {
		t.Errorf("%s is %v, want 1", orphans, n)
	}
}

// TestC31_NothingLeft_DeletionIsSent: the last work of a cluster is deleted while its agent is disconnected.
// The deletion is sent although the source has no work left there. It is sent again when an agent lists the id
// after the confirmation.
func TestC31_NothingLeft_DeletionIsSent(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	wire := newCable(t, b.addr)
	agent := startAgent(t, cluster1, wire.addr)
	src := b.connect(t, pki.Source, src1)
	w := withID("only", newWork(cluster1, "only", 1))
	src.publishWork(src1, codec.CreateRequest, w)
	agent.awaitAdded("only")
	wire.cut()
	if outcome := src.publishWork(src1, codec.DeleteRequest, deleting(w)); outcome != codec.OutcomeAccepted {
		t.Fatalf("deletion: %s", outcome)
	}
	wire.plug(b.addr)
	agent.await(t, 0, "the end of the work", ofID("deleted", "only"))

	// This agent reports an older state of its works.
	late := b.connect(t, pki.Agent, cluster1)
	events := late.subscribe(transport.Filter{Cluster: cluster1})
	late.publish(listOf(t, cluster1, codec.ResourceVersion{ResourceID: "only", ResourceVersion: 1}))
	e := events.await(t, 0, "the deletion", about("only"))
	if _, ok, err := codec.TimeExtension(e, codec.ExtDeletionTimestamp); !ok || err != nil {
		t.Errorf("got %v, want a deletion", e)
	}
}

// TestC32_SourceNotSynced_NothingIsDeleted: a source that lost its memory, or that does not own the work,
// announces no deletion. The broker answers the list from its records.
func TestC32_SourceNotSynced_NothingIsDeleted(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	wire := newCable(t, b.addr)
	agent := startAgent(t, cluster1, wire.addr)
	first := startSource(t, src1, b.addr)
	id := first.create(newWork(cluster1, "w", 1))
	agent.awaitAdded(id)
	first.kill()
	empty := startSource(t, src1, b.addr)
	other := startSource(t, src2, b.addr)
	empty.await(t, 0, "its subscription", what("subscribed"))
	other.await(t, 0, "its subscription", what("subscribed"))
	otherID := other.create(newWork(cluster1, "w2", 1))
	agent.awaitAdded(otherID)

	from := agent.position()
	wire.cut()
	wire.plug(b.addr)
	b.settle(t, b.connect(t, pki.Source, src1), agent, 2)

	if diff := cmp.Diff([]string{"last-" + t.Name()}, agent.received(from)); diff != "" {
		t.Errorf("events that the agent got (-want +got):\n%s", diff)
	}
	requests := b.wire.since(0, func(p passed) bool { return p.sent && p.peer.Role == string(identity.Source) && isRequest(p.event) })
	if len(requests) != 0 {
		t.Errorf("the sources got requests: %v", requests)
	}
}

func isRequest(e codec.Event) bool {
	kind, err := codec.ParseEventType(e.Type())
	return err == nil && kind.Action == codec.ResyncRequest
}

// TestC33_ListWithoutCluster_IsRefused: a list without a cluster is rejected, and the error names the missing
// attribute.
func TestC33_ListWithoutCluster_IsRefused(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	agent := b.connect(t, pki.Agent, cluster1)
	_, err := agent.tryPublish(listOf(t, "", codec.ResourceVersion{ResourceID: "w", ResourceVersion: 1}))
	if refusal(err).Attribute != codec.ExtClusterName {
		t.Errorf("error %v, want one about %s", err, codec.ExtClusterName)
	}
}
