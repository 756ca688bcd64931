package interop

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/codec"
)

const hold = "test.hawser.dev/hold"

// TestC36_ReportedWork_StaysUntilDeleted: a work that the agent has reported stays with its source until the
// agent confirms the deletion.
func TestC36_ReportedWork_StaysUntilDeleted(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	source, agent := startSource(t, src1, b.addr), startAgent(t, cluster1, b.addr)
	id := source.create(newWork(cluster1, "w", 1))
	agent.awaitAdded(id)
	agent.finalizers("w", hold)
	agent.report("w", "is there")
	source.awaitStatus(t, id, "is there")

	source.remove(cluster1, "w")
	marked := func(l outputLine) bool { return ofID("modified", id)(l) && l.Work.DeletionTimestamp != nil }
	agent.await(t, 0, "the deletion", marked)
	source.await(t, 0, "the deletion timestamp", marked)
	if _, ok := source.works()[id]; !ok {
		t.Error("the source removed the work before the agent was done")
	}
	agent.finalizers("w")
	source.await(t, 0, "the end of the work", ofID("deleted", id))
	agent.await(t, 0, "the end of the work", ofID("deleted", id))
	if left := source.works(); len(left) != 0 {
		t.Errorf("the source still has %v", left)
	}
}

// TestC37_UnreportedWork_IsGoneAtOnce: a deleted work that no agent has reported is gone for its source at
// once. An agent that received it still reports its end, and the source accepts that. The name can be used
// again.
func TestC37_UnreportedWork_IsGoneAtOnce(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	source, agent := startSource(t, src1, b.addr), startAgent(t, cluster1, b.addr)
	b.awaitMetric(t, 2, resyncs) // otherwise the broker may request a status from the agent
	id := source.create(newWork(cluster1, "w", 1))
	agent.awaitAdded(id)
	source.remove(cluster1, "w")
	source.await(t, 0, "the end of the work", ofID("deleted", id))

	late := b.wire.await(t, 0, "the report of its end", sentTo(identity.Source, src1, id))
	if deleted, err := codec.ReportsDeleted(late.event.Data()); !deleted || err != nil {
		t.Errorf("the source got %s (%v), want a report that the work is deleted", late.event.Data(), err)
	}
	again := source.create(newWork(cluster1, "w", 1))
	if again != id {
		t.Errorf("created again the work has id %s, before %s", again, id)
	}
	agent.await(t, 0, "the end of the work", ofID("deleted", id))
	from := agent.position()
	agent.await(t, 0, "the new work", func(l outputLine) bool {
		return ofID("received", id)(l) && l.Event.Extensions[codec.ExtDeletionTimestamp] == nil
	})
	eventually(t, "the new work in the agent's hands", func() bool { return agent.works()[id].DeletionTimestamp == nil && len(agent.works()) == 1 })
	if ended := agent.since(from, ofID("deleted", id)); len(ended) != 0 {
		t.Errorf("the new work ended too: %v", ended)
	}
}

// TestC45_Deletion_HasVersion: a deletion that the broker announces has a version, without which OCM agents
// drop it, and metadata. Orphan ids get no deletion.
func TestC45_Deletion_HasVersion(t *testing.T) {
	t.Parallel()
	b, ocm := startBroker(t), startOCMBroker(t, "")
	wire := newCable(t, b.addr)
	agent := startAgent(t, cluster1, wire.addr)
	src := b.connect(t, pki.Source, src1)
	w := withID("doomed", newWork(cluster1, "doomed", 3))
	src.publishWork(src1, codec.CreateRequest, w)
	agent.awaitAdded("doomed")
	wire.cut()
	src.publishWork(src1, codec.DeleteRequest, deleting(w))

	// The OCM broker does not know the work. It announces its deletion in a form that its own agent cannot read.
	from := agent.position()
	wire.plug(ocm.addr)
	if l := agent.await(t, from, "the deletion of the OCM broker", ofID("received", "doomed")); l.Error == "" {
		t.Errorf("the OCM broker's deletion could be read: %s", l)
	}
	wire.cut()

	from = agent.position()
	wire.plug(b.addr)
	l := agent.await(t, from, "the event of our broker", ofID("received", "doomed"))
	got := map[string]bool{}
	for _, name := range []string{codec.ExtResourceVersion, codec.ExtDeletionTimestamp, codec.ExtMetadata, codec.ExtClusterName} {
		got[name] = l.Event.Extensions[name] != nil
	}
	want := map[string]bool{codec.ExtResourceVersion: true, codec.ExtDeletionTimestamp: true, codec.ExtMetadata: true, codec.ExtClusterName: true}
	if diff := cmp.Diff(want, got); diff != "" || l.Error != "" {
		t.Errorf("deletion as the agent got it: %s (-want +got):\n%s", l, diff)
	}
	agent.await(t, from, "the end of the work", ofID("deleted", "doomed"))
}

// TestC57_DeletedWhileAway_IsRemoved: the last work is deleted while the agent is disconnected. It is removed
// when the agent reconnects, with or without its memory.
func TestC57_DeletedWhileAway_IsRemoved(t *testing.T) {
	t.Parallel()
	for name, forgets := range map[string]bool{"agent that was cut off": false, "agent that was restarted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := startBroker(t)
			wire := newCable(t, b.addr)
			source, agent := startSource(t, src1, b.addr), startAgent(t, cluster1, wire.addr)
			id := source.create(newWork(cluster1, "w", 1))
			agent.awaitAdded(id)
			agent.report("w", "is there")
			source.awaitStatus(t, id, "is there")

			wire.cut()
			if forgets {
				agent.kill()
			}
			source.remove(cluster1, "w")
			wire.plug(b.addr)
			if forgets {
				agent = startAgent(t, cluster1, wire.addr)
				agent.awaitAdded(id)
			}
			agent.await(t, 0, "the deletion", func(l outputLine) bool {
				return ofID("received", id)(l) && l.Event.Extensions[codec.ExtDeletionTimestamp] != nil && l.Error == ""
			})
			if forgets {
				// The test acts as the agent's controllers: they delete the objects, then the finalizer.
				agent.finalizers("w")
			}
			agent.await(t, 0, "the end of the work", ofID("deleted", id))
			source.await(t, 0, "the end of the work", ofID("deleted", id))
		})
	}
}

// TestC58_TwoSources_DeleteOnlyTheirOwn: two sources own works on one cluster. When the agent reconnects,
// neither deletes works of the other.
func TestC58_TwoSources_DeleteOnlyTheirOwn(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	wire := newCable(t, b.addr)
	agent := startAgent(t, cluster1, wire.addr)
	first, second := startSource(t, src1, b.addr), startSource(t, src2, b.addr)
	ids := []string{first.create(newWork(cluster1, "one", 1)), second.create(newWork(cluster1, "two", 1))}
	for n, name := range []string{"one", "two"} {
		agent.awaitAdded(ids[n])
		agent.report(name, name)
	}
	first.awaitStatus(t, ids[0], "one")
	second.awaitStatus(t, ids[1], "two")

	from := agent.position()
	wire.cut()
	wire.plug(b.addr)
	b.settle(t, b.connect(t, pki.Source, src1), agent, 2)
	if diff := cmp.Diff([]string{"last-" + t.Name()}, agent.received(from)); diff != "" {
		t.Errorf("events that the agent got (-want +got):\n%s", diff)
	}

	first.remove(cluster1, "one")
	first.await(t, 0, "the end of its work", ofID("deleted", ids[0]))
	if w, ok := agent.works()[ids[1]]; !ok || w.DeletionTimestamp != nil {
		t.Errorf("the other source's work is missing or deleted: %v", w.ObjectMeta)
	}
}
