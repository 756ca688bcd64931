package interop

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/session"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
)

// TestC57_OCMSourceAndOurAgent_Lifecycle: an OCM source, the Hawser broker and a Hawser agent. A work is
// created, changed and deleted.
func TestC57_OCMSourceAndOurAgent_Lifecycle(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	wire := newCable(t, b.addr)
	source, a := startSource(t, src1, b.addr), startOurAgent(t, wire.addr, clustertest.New())
	id := source.create(newWork(cluster1, "w", 1))
	a.awaitValue("w", "1")
	source.await(t, 0, "the status", func(l outputLine) bool {
		return ofID("modified", id)(l) && appliedMessage(l.Work.Status) == "Apply manifest work complete" && len(l.Work.Status.ResourceStatus.Manifests) == 1
	})
	source.update(newWork(cluster1, "w", 2))
	a.awaitValue("w", "2")
	source.await(t, 0, "the status of version 2", func(l outputLine) bool {
		return l.What == "received" && l.Event.Extensions[codec.ExtResourceVersion] == 2.0
	})

	// The last work is deleted while the agent is disconnected.
	wire.cut()
	source.remove(cluster1, "w")
	wire.plug(b.addr)
	a.awaitValue("w", "")
	source.await(t, 0, "the end of the work", ofID("deleted", id))
	eventually(t, "the end of the record", func() bool { return a.record("w") == nil })
}

// TestC58_TwoOCMSourcesAndOurAgent_KeepApart: two OCM sources on one cluster with a Hawser agent.
func TestC58_TwoOCMSourcesAndOurAgent_KeepApart(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	wire := newCable(t, b.addr)
	a := startOurAgent(t, wire.addr, clustertest.New())
	first, second := startSource(t, src1, b.addr), startSource(t, src2, b.addr)
	first.create(newWork(cluster1, "one", 1))
	second.create(newWork(cluster1, "two", 1))
	a.awaitValue("one", "1")
	a.awaitValue("two", "1")

	// A name of another source is rejected, and the work of its owner stays.
	w := newWork(cluster1, "one", 1)
	if l := second.try(command{Do: "create", Namespace: w.Namespace, Work: w}); l.Reason != "PublishError" {
		t.Errorf("a name of another source: error %q (%s), want a PublishError", l.Error, l.Reason)
	}
	wire.cut()
	first.remove(cluster1, "one")
	wire.plug(b.addr)
	a.awaitValue("one", "")
	if got := a.value("two"); got != "1" {
		t.Errorf("value of the other source's work %q, want 1", got)
	}
}

// ourSource is a program that publishes works with package session.
type ourSource struct {
	*session.Session
	t         testing.TB
	statuses  *journal[manifestwork.StatusReport]
	connected chan struct{}
}

// startOurSource runs src1 as a platform developer's Go program.
func startOurSource(t *testing.T, addr string) *ourSource {
	t.Helper()
	cert, key := certify(t, pki.Source, src1)
	creds, err := identity.Files{CA: certs.CACert(), Cert: cert, Key: key}.Client("", func(err error) { t.Errorf("certificates: %v", err) })
	if err != nil {
		t.Fatal(err)
	}
	d, err := transportgrpc.NewDialer(transportgrpc.Options{Target: addr, Credentials: creds, Log: logOf(t)})
	if err != nil {
		t.Fatal(err)
	}
	s := &ourSource{t: t, connected: make(chan struct{}, 1), statuses: newJournal("our source", func(r manifestwork.StatusReport) string {
		return r.ResourceID + " " + appliedMessage(r.Status)
	})}
	s.Session = session.New(session.Config{
		Dialer: d, Handler: s, Filter: transport.Filter{Source: src1, DataType: codec.ManifestBundles}, Log: logOf(t),
	})
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx); err != nil && ctx.Err() == nil {
			t.Errorf("session: %v", err)
		}
	})
	t.Cleanup(func() { stop(); wg.Wait() })
	<-s.connected
	return s
}

// Hello implements [session.Handler].
func (s *ourSource) Hello() transport.Hello { return transport.Hello{Protocol: transport.Protocol} }

// Subscribed implements [session.Handler]. It requests every status.
func (s *ourSource) Subscribed(context.Context, transport.Accepted) ([]codec.Event, error) {
	e, err := codec.NewStatusResyncRequest(codec.ResyncParams{
		ID: uuid.NewString(), Time: time.Now(), Source: src1, DataType: codec.ManifestBundles,
	}, nil)
	s.connected <- struct{}{}
	return []codec.Event{e}, err
}

// Handle implements [session.Handler].
func (s *ourSource) Handle(_ context.Context, e codec.Event) error {
	if e.Type() == codec.TypeCheckpoint {
		return nil // the program keeps no cursor
	}
	r, err := manifestwork.DecodeStatus(e)
	if err != nil {
		s.t.Errorf("status: %v", err)
		return nil
	}
	s.statuses.add(r)
	return nil
}

// Disconnected implements [session.Handler].
func (s *ourSource) Disconnected(error) {}

func (s *ourSource) publish(e codec.Event) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := s.Publish(ctx, e); err != nil {
		s.t.Fatalf("publish: %v", err)
	}
}

// TestC34_OurSourceAndOCMAgent_Lifecycle: a Hawser source, the Hawser broker and an OCM agent. The agent sees
// the protocol that it knows, and statuses are ordered by sequence id.
func TestC34_OurSourceAndOCMAgent_Lifecycle(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	source, agent := startOurSource(t, b.addr), startAgent(t, cluster1, b.addr)
	w := withID("w", newWork(cluster1, "w", 1))
	source.publish(specOf(t, src1, codec.CreateRequest, w))
	held := agent.awaitAdded("w")
	if diff := cmp.Diff("1", valueOf(t, held)); diff != "" || held.Name != "w" || held.Generation != 1 {
		t.Errorf("the agent got %v (-want +got):\n%s", held, diff)
	}
	for _, message := range []string{"first", "second"} {
		agent.report("w", message)
	}
	second := source.statuses.await(t, 0, "the second status", func(r manifestwork.StatusReport) bool { return appliedMessage(r.Status) == "second" })
	before := source.statuses.position()
	sequence := second.SequenceID
	late := b.connect(t, pki.Agent, cluster1)
	if outcome := late.publish(statusOf(t, number(1), w, "too late")); outcome != codec.OutcomeStale {
		t.Errorf("a status with an older sequence id: %s", outcome)
	}
	late.publish(statusOf(t, after(t, sequence), w, "third"))
	source.statuses.await(t, before, "the third status", func(r manifestwork.StatusReport) bool { return appliedMessage(r.Status) == "third" })
	if got := source.statuses.since(0, func(r manifestwork.StatusReport) bool { return appliedMessage(r.Status) == "too late" }); len(got) != 0 {
		t.Errorf("the source got %v", got)
	}

	w = withID("w", newWork(cluster1, "w", 2))
	source.publish(specOf(t, src1, codec.UpdateRequest, w))
	agent.await(t, 0, "version 2", func(l outputLine) bool { return ofID("modified", "w")(l) && l.Work.Generation == 2 })
	// A Hawser source sends a deletion with its data. OCM agents use only its timestamp.
	e, err := manifestwork.EncodeSpec(deleting(w), manifestwork.SpecParams{
		ID: uuid.NewString(), Now: time.Now(), Source: src1, Action: codec.DeleteRequest, DeletionWithData: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	source.publish(e)
	source.statuses.await(t, 0, "the end of the work", func(r manifestwork.StatusReport) bool { return r.Deleted })
}
