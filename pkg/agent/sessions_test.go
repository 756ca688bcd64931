package agent

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/sessionfence"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// newStatelessRig returns an agent behind a stateless broker, and the session tracker of its source, which knows the
// agent's session.
func newStatelessRig(t *testing.T) (r *rig, hub *sessionfence.Tracker) {
	r = newRig(t)
	r.start()
	events, err := r.core.Subscribed(transport.Accepted{Stateless: true, SubscriptionID: "s"})
	if err != nil || len(events) != 1 {
		t.Fatalf("%v, %v", events, err)
	}
	hub = sessionfence.NewTracker(100, "hub")
	hub.Observe(testCluster, r.stamp(events[0]))
	return r, hub
}

func (r *rig) stamp(e codec.Event) sessionfence.Stamp {
	r.t.Helper()
	m, err := sessionfence.StampOf(e)
	if err != nil {
		r.t.Fatal(err)
	}
	return m
}

// placed is a spec event of the source with a session stamp.
func (r *rig) placed(m sessionfence.Stamp, w *workv1.ManifestWork, action codec.Action) codec.Event {
	return r.ocmEvent(w, action, m.Put)
}

// lists returns the session stamp of the list that the agent has to send; false if there is none.
func (r *rig) lists() (sessionfence.Stamp, bool) {
	r.t.Helper()
	l, ok := r.core.NextSync()
	if !ok {
		return sessionfence.Stamp{}, false
	}
	r.core.SyncDone(l, nil)
	return r.stamp(l.Event), true
}

func TestCore_SendsPeerSessionToSource(t *testing.T) {
	r, hub := newStatelessRig(t)
	r.core.Handle(t.Context(), r.placed(hub.Stamp(testCluster), hubWork("w-1", "web", 1, configMap("a", "1")), codec.CreateRequest))
	m, ok := r.lists()
	if !ok || hub.Observe(testCluster, m) != sessionfence.CurrentFirst {
		t.Fatalf("after the first event of a session it sends %+v", m)
	}
	r.settle(time.Second)
	r.expectValue("a", "1")
	r.core.Handle(t.Context(), r.placed(hub.Stamp(testCluster), hubWork("w-1", "web", 2, configMap("a", "2")), codec.UpdateRequest))
	if _, ok := r.lists(); ok {
		t.Error("it sends a list after each event")
	}
}

// TestCore_ResendsListToNewSourceSession: hub-source subscribes after the agent's first list. Its events are
// dropped until it knows the session of the agent.
func TestCore_ResendsListToNewSourceSession(t *testing.T) {
	r := newRig(t)
	r.start()
	if _, err := r.core.Subscribed(transport.Accepted{Stateless: true, SubscriptionID: "s"}); err != nil {
		t.Fatal(err)
	}
	hub := sessionfence.NewTracker(100, "hub")
	publish := func() {
		r.syncIn = 0
		r.core.Handle(t.Context(), r.placed(hub.Stamp(testCluster), hubWork("w-1", "web", 1, configMap("a", "1")), codec.CreateRequest))
	}
	publish()
	if m, ok := r.lists(); !ok || m.PeerSession != hub.Stamp(testCluster).Session {
		t.Fatalf("to a new session it sends %+v at once", m)
	}
	r.now = r.now.Add(time.Second)
	publish()
	if _, ok := r.lists(); ok || r.syncIn != listEvery-time.Second {
		t.Errorf("to the same session it sends the list again, or in %v", r.syncIn)
	}
	r.now = r.now.Add(time.Second)
	if publish(); r.syncIn != 0 {
		t.Errorf("each event starts a timer of %v", r.syncIn)
	}
	r.now = r.now.Add(listEvery - 2*time.Second)
	if m, ok := r.lists(); !ok || hub.Observe(testCluster, m) != sessionfence.CurrentFirst {
		t.Errorf("after %v it sends %+v", listEvery, m)
	}
}

// TestCore_LateEventsCountNoLonger: events of an earlier session, to an earlier process, or behind their
// successor are dropped.
func TestCore_LateEventsCountNoLonger(t *testing.T) {
	r, hub := newStatelessRig(t)
	old := hub.Stamp(testCluster)
	older := hubWork("w-1", "web", 1, configMap("a", "old"))
	late := r.placed(hub.Stamp(testCluster), older, codec.UpdateRequest)
	r.handle(r.placed(hub.Stamp(testCluster), hubWork("w-1", "web", 1, configMap("a", "1")), codec.UpdateRequest))
	r.handle(late)
	r.expectValue("a", "1")

	next := sessionfence.NewTracker(200, "next")
	next.Observe(testCluster, r.core.sessions.Stamp("hub"))
	r.handle(r.placed(next.Stamp(testCluster), hubWork("w-1", "web", 2, configMap("a", "2")), codec.UpdateRequest))
	r.now = r.now.Add(time.Minute)
	r.core.Handle(t.Context(), r.placed(old, hubWork("w-1", "web", 9, configMap("a", "old")), codec.UpdateRequest))
	r.expectValue("a", "2")
	if m, ok := r.lists(); !ok || m.PeerSession.ID != "next" {
		t.Errorf("sent %+v for an earlier session: a source with a clock that went back is not notified", m)
	}

	before := next.Stamp(testCluster)
	r.start()
	if _, err := r.core.Subscribed(transport.Accepted{Stateless: true, SubscriptionID: "t"}); err != nil {
		t.Fatal(err)
	}
	r.handle(r.placed(before, hubWork("w-1", "web", 9, configMap("a", "old")), codec.UpdateRequest))
	r.expectValue("a", "2")
}

// TestCore_OCMSourceBehindAStatelessBroker: an OCM source sends no session stamps, so its versions decide.
func TestCore_OCMSourceBehindAStatelessBroker(t *testing.T) {
	r, _ := newStatelessRig(t)
	r.handle(r.placed(sessionfence.Stamp{}, hubWork("w-1", "web", 2, configMap("a", "2")), codec.UpdateRequest))
	r.handle(r.placed(sessionfence.Stamp{}, hubWork("w-1", "web", 1, configMap("a", "1")), codec.UpdateRequest))
	r.expectValue("a", "2")
	bad := r.ocmEvent(hubWork("w-1", "web", 3, configMap("a", "3")), codec.UpdateRequest, func(e *codec.Event) { e.SetExtension(codec.ExtSession, "x") })
	r.handle(bad)
	r.expectValue("a", "2")
}

// TestCore_SendsGoodbye checks that a goodbye names the agent's own session, also before the source is known.
func TestCore_SendsGoodbye(t *testing.T) {
	r, hub := newStatelessRig(t)
	for _, source := range []string{"", "hub"} {
		e, err := r.core.Goodbye()
		if err != nil {
			t.Fatal(err)
		}
		_, goodbye, err := codec.ParseKeepalive(e)
		original, _, _ := codec.StringExtension(e, codec.ExtOriginalSource)
		if err != nil || !goodbye || len(e.Data()) != 0 || original != source {
			t.Errorf("to %q it sends %v, %v", source, e, err)
		}
		if m := r.stamp(e); m.PeerSession != (codec.Session{}) || m.Fence != 0 || !hub.MatchesGoodbye(testCluster, m) {
			t.Errorf("to %q its stamp is %+v", source, m)
		}
		r.core.Handle(t.Context(), r.placed(hub.Stamp(testCluster), hubWork("w-1", "web", 1, configMap("a", "1")), codec.CreateRequest))
	}
}

// TestCore_SendsKeepalives checks that a Hawser source gets the digest of the held works every minute.
func TestCore_SendsKeepalives(t *testing.T) {
	r, hub := newStatelessRig(t)
	if r.core.KeepAlive() != time.Minute {
		t.Error("the next keepalive is not due in a minute")
	}
	if l, ok := r.core.NextSync(); ok {
		t.Fatalf("before it knows its source it sends %s", l.Event.Type())
	}
	web := r.placed(hub.Stamp(testCluster), hubWork("w-1", "web", 1, configMap("a", "1")), codec.CreateRequest)
	r.handle(web)
	r.core.KeepAlive()
	l, ok := r.core.NextSync()
	if !ok || l.Event.Type() != codec.TypeKeepalive {
		t.Fatalf("it sends %v", l.Event)
	}
	d, _, err := codec.ParseKeepalive(l.Event)
	if err != nil || d != r.core.set.DigestOf("hub") || d.Count != 1 {
		t.Errorf("it holds %+v, %v", d, err)
	}
	if v := hub.Observe(testCluster, r.stamp(l.Event)); !v.IsAccepted() {
		t.Errorf("the source drops the keepalive: %d", v)
	}
	if r.core.SyncDone(l, &transport.Error{Code: transport.CodeUnavailable}) {
		t.Error("a lost keepalive is sent again")
	}
}

// TestCore_ReportsTooLargeList: a list is one event and cannot be split.
func TestCore_ReportsTooLargeList(t *testing.T) {
	r, hub := newStatelessRig(t)
	r.handle(r.placed(hub.Stamp(testCluster), hubWork("w-1", "web", 1, configMap("a", "1")), codec.CreateRequest))
	for limit, want := range map[int]bool{0: false, 20: true, 1 << 10: false} {
		var output bytes.Buffer
		r.core.config.Log = slog.New(slog.NewTextHandler(&output, nil))
		if _, err := r.core.Subscribed(transport.Accepted{Stateless: true, SubscriptionID: "t", MaxEventBytes: limit}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(output.String(), "works=1 bytes="); got != want {
			t.Errorf("with a limit of %d the log is %s", limit, output.String())
		}
	}
}
