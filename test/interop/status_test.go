package interop

import (
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/codec"
)

// number returns the n-th sequence id after the first, in the form of OCM agents.
func number(n int64) string {
	const first = 2123694259314888704 // some time in 2025, node 1
	return strconv.FormatInt(first+n, 10)
}

// TestC23_EmptyHashList_GetsEveryStatus: a restarted OCM source knows no work and requests every status with an
// empty list, for no cluster in particular.
func TestC23_EmptyHashList_GetsEveryStatus(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	source, agent := startSource(t, src1, b.addr), startAgent(t, cluster1, b.addr)
	ids := []string{source.create(newWork(cluster1, "one", 1)), source.create(newWork(cluster1, "two", 1))}
	for n, name := range []string{"one", "two"} {
		agent.awaitAdded(ids[n])
		agent.report(name, name)
		source.awaitStatus(t, ids[n], name)
	}
	source.kill()
	other := startSource(t, src2, b.addr)
	other.await(t, 0, "its subscription", what("subscribed"))

	source = startSource(t, src1, b.addr)
	for _, id := range ids {
		l := source.await(t, 0, "the status of "+id, ofID("received", id))
		if want := codec.ManifestBundles.String() + ".status.resync_response"; l.Event.Type != want || l.Error != "" {
			t.Errorf("got %s, want a %s that it can decode", l, want)
		}
	}
	if got := other.since(0, what("received")); len(got) != 0 {
		t.Errorf("the other source got %v", got)
	}
}

// TestC24_DifferentHashes_AreAnswered: the broker requests from a reconnected OCM agent the statuses that differ
// from its own. The agent answers with only those.
func TestC24_DifferentHashes_AreAnswered(t *testing.T) {
	t.Parallel()
	b, ocm := startBroker(t), startOCMBroker(t, "")
	wire := newCable(t, ocm.addr)
	source, agent := startSource(t, src1, b.addr), startAgent(t, cluster1, wire.addr)
	ocm.put(withID("unlisted", newWork(cluster1, "unlisted", 1)))
	agent.awaitAdded("unlisted")
	agent.report("unlisted", "not requested")
	wire.cut()
	wire.plug(b.addr)
	equal, differs := source.create(newWork(cluster1, "equal", 1)), source.create(newWork(cluster1, "differs", 1))
	for _, w := range []struct{ id, name string }{{equal, "equal"}, {differs, "differs"}} {
		agent.awaitAdded(w.id)
		agent.report(w.name, w.name)
		source.awaitStatus(t, w.id, w.name)
	}
	sent := agent.since(0, ofID("sent", differs))
	sequence, _ := sent[len(sent)-1].Event.Extensions[codec.ExtSequenceID].(string)
	other := withID(differs, newWork(cluster1, "differs", 1))
	b.connect(t, pki.Agent, cluster1).publish(statusOf(t, after(t, sequence), other, "another"))
	source.awaitStatus(t, differs, "another")

	from := agent.position()
	wire.cut()
	wire.plug(b.addr)
	// A second answer would be that of the other work.
	from2 := source.position()
	source.await(t, from2, "the agent's own status", func(l outputLine) bool {
		return ofID("modified", differs)(l) && appliedMessage(l.Work.Status) == "differs"
	})
	agent.report("equal", "barrier")
	source.awaitStatus(t, equal, "barrier")
	var answered []string
	for _, l := range agent.since(from, what("sent")) {
		if l.Event.Type == codec.ManifestBundles.String()+".status.resync_response" {
			id, _ := l.Event.Extensions[codec.ExtResourceID].(string)
			answered = append(answered, id)
		}
	}
	if diff := cmp.Diff([]string{differs}, answered); diff != "" {
		t.Errorf("works that the agent answered for (-want +got):\n%s", diff)
	}
}

// after returns the next sequence id.
func after(t testing.TB, sequence string) string {
	t.Helper()
	n, err := strconv.ParseInt(sequence, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return strconv.FormatInt(n+1, 10)
}

// TestC34_OlderSequence_IsIgnored: statuses are ordered by their sequence ids, whatever the order of arrival.
func TestC34_OlderSequence_IsIgnored(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	source, agent := startSource(t, src1, b.addr), b.connect(t, pki.Agent, cluster1)
	w := newWork(cluster1, "w", 1)
	id := source.create(w)
	withID(id, w)
	got := map[string]string{}
	for _, n := range []int64{10, 9, 10, 11} {
		message := strconv.FormatInt(n, 10)
		outcome := agent.publish(statusOf(t, number(n), w, message))
		if _, twice := got[message]; twice {
			message += " again"
		}
		got[message] = outcome
	}
	want := map[string]string{"10": codec.OutcomeAccepted, "9": codec.OutcomeStale, "10 again": codec.OutcomeUnchanged, "11": codec.OutcomeAccepted}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
	source.awaitStatus(t, id, "11")
	for _, l := range source.since(0, ofID("modified", id)) {
		if m := appliedMessage(l.Work.Status); m != "10" && m != "11" {
			t.Errorf("the source took status %q", m)
		}
	}
}

// TestC35_OtherVersion_IsDecidedByTheSource: a status about another version than the source's reaches the
// source, which decides. An OCM source ignores a status about a newer version than its own.
func TestC35_OtherVersion_IsDecidedByTheSource(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	source, agent := startSource(t, src1, b.addr), b.connect(t, pki.Agent, cluster1)
	w := newWork(cluster1, "w", 4)
	id := source.create(w)
	report := func(sequence, version int64, message string) {
		about := withID(id, newWork(cluster1, "w", version))
		if outcome := agent.publish(statusOf(t, number(sequence), about, message)); outcome != codec.OutcomeAccepted {
			t.Fatalf("status of version %d: %s", version, outcome)
		}
		b.wire.await(t, 0, "status "+message, func(p passed) bool {
			return sentTo(identity.Source, src1, id)(p) && version == versionOf(t, p.event)
		})
	}
	report(1, 5, "newer")
	report(2, 3, "older")
	source.awaitStatus(t, id, "older")
	for _, l := range source.since(0, ofID("modified", id)) {
		if m := appliedMessage(l.Work.Status); m == "newer" {
			t.Errorf("the source took the status of version 5, its own is 4")
		}
	}
}

func versionOf(t testing.TB, e codec.Event) int64 {
	t.Helper()
	v, _, err := codec.VersionExtension(e)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestC38_UnknownWork_IsIgnored: a status of an unknown work is accepted, so that its agent does not send it
// forever. The broker does not forward it.
func TestC38_UnknownWork_IsIgnored(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	source, agent := startSource(t, src1, b.addr), b.connect(t, pki.Agent, cluster1)
	source.await(t, 0, "its subscription", what("subscribed"))
	unknown := withID("unknown", newWork(cluster1, "unknown", 1))
	if outcome := agent.publish(statusOf(t, number(1), unknown, "is there")); outcome != codec.OutcomeIgnored {
		t.Errorf("status of an unknown work: %s, want %s", outcome, codec.OutcomeIgnored)
	}
	if outcome := agent.publish(endOf(t, number(2), unknown)); outcome != codec.OutcomeIgnored {
		t.Errorf("last status of an unknown work: %s, want %s", outcome, codec.OutcomeIgnored)
	}
	id := source.create(newWork(cluster1, "w", 1))
	agent.publish(statusOf(t, number(3), withID(id, newWork(cluster1, "w", 1)), "barrier"))
	source.awaitStatus(t, id, "barrier")
	if got := source.since(0, ofID("received", "unknown")); len(got) != 0 {
		t.Errorf("the source got %v", got)
	}
}
