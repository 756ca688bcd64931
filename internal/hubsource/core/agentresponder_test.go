package core

import (
	"errors"
	"fmt"
	"testing"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/sessionfence"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// statelessFixture returns a core behind a stateless broker. The cluster has reported nothing about the works.
func statelessFixture(t *testing.T, works ...*workv1.ManifestWork) *fixture {
	f := newFixture(t, true)
	for _, w := range works {
		f.seen(w)
	}
	f.core.Connected(transport.Accepted{Stateless: true, SubscriptionID: "s"})
	f.core.NextInitialSync(1 << 10)
	f.locate("1000")
	return f
}

// ours returns a Hawser agent that knows the core's session.
func (f *fixture) ours(cluster string) *sessionfence.Tracker {
	f.t.Helper()
	agent := sessionfence.NewTracker(5, "agent")
	f.core.index.sessions.Observe(cluster, agent.Stamp("hub"))
	agent.Observe("hub", f.core.index.sessions.Stamp(cluster))
	if !f.core.responder.acceptsStamp(cluster, agent.Stamp("hub")) {
		f.t.Fatal("the event of the agent is rejected")
	}
	return agent
}

// requested answers requests for statuses until there is none.
func (f *fixture) requested(cluster string) (requests []RequestStatuses) {
	for {
		e, ok := f.core.Next(BrokerQueue, Key{Cluster: cluster}).(RequestStatuses)
		if !ok {
			return requests
		}
		f.done(e, Result{Sent: 1})
		requests = append(requests, e)
	}
}

// lists sends the list of an agent. The hub answers the query with the works in has.
func (f *fixture) lists(has Present, versions ...codec.ResourceVersion) {
	f.t.Helper()
	f.requested("cluster1")
	if !f.core.AgentList(&AgentList{Cluster: "cluster1", Versions: versions}) {
		f.t.Fatal("the list does not count")
	}
	f.done(nextOf[List](f, BrokerQueue, Key{Cluster: "cluster1"}), Result{Present: has})
}

func present(works ...*workv1.ManifestWork) Present {
	p := Present{}
	for _, w := range works {
		p[w.UID] = w.ResourceVersion
	}
	return p
}

// TestStatelessBroker_PublishesAgain: a version is published again after one and five minutes, then every
// thirty minutes, until a status of it arrives.
func TestStatelessBroker_PublishesAgain(t *testing.T) {
	w := newWork("a", 3)
	f := statelessFixture(t, w)
	for _, after := range []time.Duration{time.Minute, 4 * time.Minute, 30 * time.Minute, 30 * time.Minute} {
		f.deliver(w.UID)
		f.idle(BrokerQueue, w.UID)
		f.now = f.now.Add(after - after/20 - time.Second)
		f.idle(BrokerQueue, w.UID)
		f.now = f.now.Add(after/20 + time.Second)
	}
	older := report(newWork("a", 2), 1, applied(2))
	f.core.Report(older)
	f.deliver(w.UID)
	if v := f.core.Report(report(w, 2, applied(3))); v != Taken {
		t.Fatalf("the report is %s", v)
	}
	f.now = f.now.Add(time.Hour)
	f.idle(BrokerQueue, w.UID)
}

func TestStatelessBroker_DeletesAgainUntilItIsGone(t *testing.T) {
	w := newWork("a", 4, deleting, withStatus(applied(3)))
	f := statelessFixture(t, w)
	for range 3 {
		if p := f.deliver(w.UID); p.Action != codec.DeleteRequest || p.First != PriorNone {
			t.Fatalf("published %+v", p)
		}
		f.idle(BrokerQueue, w.UID)
		f.now = f.now.Add(31 * time.Minute)
	}
	gone := report(w, 1, workv1.ManifestWorkStatus{})
	gone.Deleted = true
	f.core.Report(gone)
	f.idle(BrokerQueue, w.UID)
	next[RemoveFinalizer](f, HubQueue, w.UID)
}

// TestStatelessBroker_LastSpecBeforeADeletion: an OCM agent reads no data from a deletion. So it needs the last
// spec first, with the delete option.
func TestStatelessBroker_LastSpecBeforeADeletion(t *testing.T) {
	orphan := func(w *workv1.ManifestWork) {
		w.Spec.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}
	}
	for name, w := range map[string]*workv1.ManifestWork{
		"orphan":                newWork("a", 4, deleting, orphan, withStatus(applied(3))),
		"last spec unconfirmed": newWork("a", 4, deleting, withStatus(applied(2))),
	} {
		f := statelessFixture(t, w)
		p := f.deliver(w.UID)
		e, err := eventOf(p, f.id, f.now)
		if err != nil || p.First != PriorLastSpec || e.Extensions()[codec.ExtDeletionTimestamp] != nil || len(e.Data()) == 0 {
			t.Fatalf("%s: published %+v, %v", name, p, err)
		}
		f.idle(BrokerQueue, w.UID)
		gone := report(w, 1, workv1.ManifestWorkStatus{})
		gone.Deleted = true
		if v := f.core.Report(gone); v != PreviousSession {
			t.Errorf("%s: the confirmation of an earlier deletion is %s, while the work is created again", name, v)
		}
		f.core.Report(report(w, 2, applied(4)))
		p = f.deliver(w.UID)
		if e, err = eventOf(p, f.id, f.now); err != nil || p.First != PriorNone || e.Extensions()[codec.ExtDeletionTimestamp] == nil {
			t.Fatalf("%s: published then %+v, %v", name, p, err)
		}

		f = statelessFixture(t, w)
		f.ours("cluster1")
		if p := f.deliver(w.UID); p.First != PriorNone {
			t.Errorf("%s: our agent, which takes the data of a deletion, got %+v before", name, p)
		}
	}
}

func TestStatelessBroker_AnswersAList(t *testing.T) {
	a, b, c := newWork("a", 3), newWork("b", 3), newWork("c", 3)
	f := statelessFixture(t, a, b, c)
	for _, w := range []*workv1.ManifestWork{a, b, c} {
		f.deliver(w.UID)
	}
	f.lists(present(a, b, c), codec.ResourceVersion{ResourceID: "uid-a", ResourceVersion: 3}, codec.ResourceVersion{ResourceID: "uid-b", ResourceVersion: 2})
	f.requested("cluster1")
	f.clusterIdle("cluster1")
	f.deliver("uid-b")
	f.deliver("uid-c")
	f.now = f.now.Add(time.Hour)
	f.idle(BrokerQueue, "uid-a") // the agent has the last spec
}

// TestStatelessBroker_AnswersNoListBeforeInformersHaveShownAll: a work that they have not shown yet is not
// missing.
func TestStatelessBroker_AnswersNoListBeforeInformersHaveShownAll(t *testing.T) {
	a, b := newWork("a", 3), newWork("b", 3)
	f := statelessFixture(t, a)
	f.deliver("uid-a")
	f.lists(present(a, b), codec.ResourceVersion{ResourceID: "uid-b", ResourceVersion: 3})
	f.requested("cluster1")
	f.clusterIdle("cluster1")
	f.idle(BrokerQueue, "uid-a")
	f.now = f.now.Add(time.Minute)
	f.seen(b)
	f.done(nextOf[List](f, BrokerQueue, Key{Cluster: "cluster1"}), Result{Err: errHubDown()})
	f.requested("cluster1")
	f.clusterIdle("cluster1")
	f.now = f.now.Add(time.Minute)
	f.done(nextOf[List](f, BrokerQueue, Key{Cluster: "cluster1"}), Result{Present: present(a, b)})
	f.clusterIdle("cluster1") // no orphan is left
	f.deliver("uid-a")
}

func TestStatelessBroker_QueriesTheHubForUnlistedWorks(t *testing.T) {
	a := newWork("a", 3)
	f := statelessFixture(t, a)
	f.deliver("uid-a")
	f.lists(present(), codec.ResourceVersion{ResourceID: "uid-a", ResourceVersion: 2})
	f.requested("cluster1")
	f.clusterIdle("cluster1")
	f.idle(BrokerQueue, "uid-a")
	next[Get](f, HubQueue, "uid-a")
}

// oneOrphan is an agent that lists a work which the hub lacks. Its status was requested.
func oneOrphan(t *testing.T) (*fixture, *Report) {
	a := newWork("a", 3)
	f := statelessFixture(t, a)
	f.deliver("uid-a")
	f.lists(present(a), codec.ResourceVersion{ResourceID: "uid-a", ResourceVersion: 3}, codec.ResourceVersion{ResourceID: "uid-x", ResourceVersion: 7})
	requests := f.requested("cluster1")
	if len(requests) != 2 || len(requests[0].Statuses) != 1 || requests[0].Statuses[0].UID != "uid-x" || requests[0].Statuses[0].Hash == "" || requests[1].Statuses[0].UID != "uid-a" {
		t.Fatalf("it requests %+v", requests)
	}
	return f, report(newWork("x", 7), 1, applied(7))
}

// TestStatelessBroker_DeletesOrphans: absence from the hub alone deletes no work.
func TestStatelessBroker_DeletesOrphans(t *testing.T) {
	cluster := Key{Cluster: "cluster1"}
	f, r := oneOrphan(t)
	f.clusterIdle("cluster1")
	f.core.Report(r)
	f.done(next[Get](f, HubQueue, "uid-x"), Result{Err: errNotFound()})
	f.idle(HubQueue, "uid-x")
	f.clusterIdle("cluster1")
	f.now = f.now.Add(missingDelay)
	f.done(nextOf[Get](f, BrokerQueue, cluster), Result{Work: newWork("x", 1, func(o *workv1.ManifestWork) { o.UID = "another" })})
	f.clusterIdle("cluster1") // the present position of the hub is unknown
	f.locate("1001")
	for range 3 { // until the agent confirms the deletion
		d := nextOf[Delete](f, BrokerQueue, cluster)
		e, err := eventOf(d, f.id, f.now)
		if err != nil || e.Extensions()[codec.ExtResourceID] != "uid-x" || e.Extensions()[codec.ExtIfRevision] != nil {
			t.Fatalf("published %v, %v", e.Extensions(), err)
		}
		f.done(d, Result{})
		f.now = f.now.Add(32 * time.Minute)
		f.done(nextOf[Get](f, BrokerQueue, cluster), Result{Err: errNotFound()})
		f.locate("1002")
	}
	r.Deleted, r.Sequence = true, sequence(2)
	f.core.Report(r)
	f.requested("cluster1")
	f.now = f.now.Add(time.Hour)
	f.requested("cluster1")
	f.clusterIdle("cluster1")
}

func TestStatelessBroker_KeepsReappearingWork(t *testing.T) {
	f, r := oneOrphan(t)
	f.core.Report(r)
	f.done(next[Get](f, HubQueue, "uid-x"), Result{Err: errNotFound()})
	f.idle(HubQueue, "uid-x")
	f.now = f.now.Add(missingDelay)
	f.done(nextOf[Get](f, BrokerQueue, Key{Cluster: "cluster1"}), Result{Work: newWork("x", 7)})
	f.now = f.now.Add(time.Minute)
	f.locate("1001")
	f.clusterIdle("cluster1")
}

func TestStatelessBroker_DeletesNothingOfAnotherSource(t *testing.T) {
	f, r := oneOrphan(t)
	r.Source = "another-source"
	if v := f.core.Report(r); v != Foreign {
		t.Errorf("the report is %s", v)
	}
	elsewhere := report(newWork("a", 3), 1, applied(3))
	elsewhere.Cluster = "cluster2"
	if v := f.core.Report(elsewhere); v != Foreign {
		t.Errorf("the report from another cluster is %s", v)
	}
	f.idle(HubQueue, "uid-x")
	f.clusterIdle("cluster1")
}

// TestStatelessBroker_WithholdsMany: deletions above the bound are withheld, and all of them under rollback
// suspicion.
func TestStatelessBroker_WithholdsMany(t *testing.T) {
	for name, suspicion := range map[string]bool{"many": false, "suspicion": true} {
		f := statelessFixture(t, newWork("a", 1))
		n := 11
		if suspicion {
			n = 1
			f.core.epochs.suspectRollback("the hub went back")
		}
		var list []codec.ResourceVersion
		for i := range n {
			list = append(list, codec.ResourceVersion{ResourceID: fmt.Sprint("uid-x", i), ResourceVersion: 1})
		}
		f.lists(present(newWork("a", 1)), list...)
		f.requested("cluster1")
		x := report(newWork("x0", 1), 1, applied(1))
		f.core.Report(x)
		f.done(next[Get](f, HubQueue, x.UID), Result{Err: errNotFound()})
		f.idle(HubQueue, x.UID)
		f.now = f.now.Add(missingDelay)
		e := nextOf[Withhold](f, BrokerQueue, Key{Cluster: "cluster1"})
		if len(e.Withheld) != 1 || e.Withheld[0] != (codec.WithheldDeletion{ResourceID: "uid-x0", Name: "x0"}) || e.Reason == "" {
			t.Errorf("%s: withholds %+v", name, e)
		}
		f.core.Done(BrokerQueue, Key{Cluster: "cluster1"}, Result{})
		f.clusterIdle("cluster1")
		if s := f.core.Stats(); s.WithheldClusters != 1 || s.WithheldWorks != 1 {
			t.Errorf("%s: shows %+v", name, s)
		}
		s, _ := f.core.State()
		if len(s.Withheld) != 1 {
			t.Errorf("%s: keeps %+v", name, s)
		}
	}
}

// TestStatelessBroker_ManyOneByOneAreMany: the hub lost many works, and their reports arrive slowly, one by
// one. They are counted together: after ten deletions the others are withheld.
func TestStatelessBroker_ManyOneByOneAreMany(t *testing.T) {
	f := statelessFixture(t, newWork("a", 1))
	f.requested("cluster1")
	deleted := 0
	for i := range 12 {
		x := report(newWork(fmt.Sprint("x", i), 1), 1, applied(1))
		f.core.Report(x)
		f.done(next[Get](f, HubQueue, x.UID), Result{Err: errNotFound()})
		f.idle(HubQueue, x.UID)
		f.now = f.now.Add(missingDelay)
		g, ok := f.core.Next(BrokerQueue, Key{Cluster: "cluster1"}).(Get)
		if !ok {
			break
		}
		f.done(g, Result{Err: errNotFound()})
		f.locate(fmt.Sprint(2000 + i))
		f.done(nextOf[Delete](f, BrokerQueue, Key{Cluster: "cluster1"}), Result{})
		deleted++
		x.Deleted, x.Sequence = true, sequence(2)
		f.core.Report(x)
	}
	if deleted != 10 {
		t.Errorf("%d were deleted", deleted)
	}
}

// TestStatelessBroker_DetectsRollbackByAgentList: an agent lists a later version than the hub has.
func TestStatelessBroker_DetectsRollbackByAgentList(t *testing.T) {
	a := newWork("a", 3)
	f := statelessFixture(t, a)
	f.deliver("uid-a")
	f.lists(present(a), codec.ResourceVersion{ResourceID: "uid-a", ResourceVersion: 5})
	f.requested("cluster1")
	f.clusterIdle("cluster1")
	f.lags = true
	f.idle(BrokerQueue, "uid-a")
	f.done(next[Get](f, HubQueue, "uid-a"), Result{Work: a})
	f.idle(BrokerQueue, "uid-a")
	f.beginEpoch(a)
	f.lags = false
	f.core.Connected(transport.Accepted{Stateless: true, SubscriptionID: "s2"})
	p := next[Publish](f, BrokerQueue, "uid-a")
	events, err := p.Events(f.id, f.now, "hub")
	if err != nil || p.First != PriorUnversioned || len(events) != 2 {
		t.Fatalf("published %+v: %d events, %v", p, len(events), err)
	}
	for i, want := range []int32{0, 3} { // without a version no agent treats it as older
		if v := events[i].Extensions()[codec.ExtResourceVersion]; v != want {
			t.Errorf("event %d has version %v", i, v)
		}
	}
	first, _ := sessionfence.StampOf(events[0])
	second, _ := sessionfence.StampOf(events[1])
	if first.Fence >= second.Fence || events[0].ID() == events[1].ID() {
		t.Errorf("the events are %+v and %+v", first, second)
	}
}

func TestStatelessBroker_RequestsStatusesEveryHalfHour(t *testing.T) {
	a := newWork("a", 3)
	f := statelessFixture(t, a)
	for range 3 {
		if requests := f.requested("cluster1"); len(requests) != 1 || requests[0].Statuses[0].UID != a.UID {
			t.Fatalf("it requests %+v", requests)
		}
		f.now = f.now.Add(requestEvery - requestEvery/20 - time.Second)
		f.clusterIdle("cluster1")
		f.now = f.now.Add(requestEvery/10 + time.Second)
	}
}

// TestStatelessBroker_RequestsStatusesOfEarlierSession: a status of an earlier session may be older than the
// one on the hub, so it is requested again.
func TestStatelessBroker_RequestsStatusesOfEarlierSession(t *testing.T) {
	a := newWork("a", 3, withStatus(applied(3)))
	f := statelessFixture(t, a)
	f.requested("cluster1")
	agent := sessionfence.NewTracker(5, "agent")
	send := func() *Report {
		r := report(a, 1, applied(3))
		r.Stamp = agent.Stamp("hub")
		return r
	}
	if v := f.core.Report(send()); v != PreviousSession {
		t.Fatalf("the report is %s", v)
	}
	requests := f.requested("cluster1")
	if len(requests) != 1 || requests[0].Stamp.Session == (codec.Session{}) || requests[0].Stamp.PeerSession.ID != "agent" {
		t.Fatalf("it requests %+v", requests)
	}
	if v := f.core.Report(send()); v != PreviousSession || len(f.requested("cluster1")) != 0 {
		t.Errorf("the next report, soon after, is %s", v)
	}
	agent.Observe("hub", requests[0].Stamp)
	if v := f.core.Report(send()); v != Taken {
		t.Errorf("the answer is %s", v)
	}
	if f.core.AgentList(&AgentList{Cluster: "cluster1", Stamp: sessionfence.Stamp{Session: codec.Session{Number: 4, ID: "agent"}}}) {
		t.Error("the list of an earlier agent is accepted")
	}
}

// TestStatelessBroker_SequencesRestartWithAgent: a restarted agent begins a new sequence, because its clock may
// have gone back.
func TestStatelessBroker_SequencesRestartWithAgent(t *testing.T) {
	a := newWork("a", 3)
	f := statelessFixture(t, a)
	agent := f.ours("cluster1")
	send := func(n int) ReportResult {
		r := report(a, n, applied(3))
		r.Stamp = agent.Stamp("hub")
		return f.core.Report(r)
	}
	if v := send(7); v != Taken {
		t.Fatalf("the report is %s", v)
	}
	if v := send(6); v != Stale {
		t.Errorf("an older one is %s", v)
	}
	agent = sessionfence.NewTracker(6, "next")
	agent.Observe("hub", f.core.index.sessions.Stamp("cluster1"))
	f.core.Report(&Report{Cluster: "cluster1", Stamp: agent.Stamp("hub")})
	agent.Observe("hub", f.core.index.sessions.Stamp("cluster1"))
	if v := send(5); v != Taken {
		t.Errorf("the first report of the next process is %s", v)
	}
}

// TestStatelessBroker_RepairsArePaced: repeated publishes are limited, and a change on the hub waits for none
// of them.
func TestStatelessBroker_RepairsArePaced(t *testing.T) {
	var works []*workv1.ManifestWork
	for i := range 300 {
		works = append(works, newWork(fmt.Sprintf("w%03d", i), 1))
	}
	f := statelessFixture(t, works...)
	publishes := func() (n int) {
		for _, w := range works {
			f.sure()
			if p, ok := f.core.Next(BrokerQueue, Key{UID: w.UID}).(Publish); ok {
				f.done(p, Result{})
				n++
			}
		}
		return n
	}
	for range 20 { // the hub is queried for all of them
		if l, ok := f.core.Next(HubQueue, Key{Cluster: "cluster1"}).(List); ok {
			f.done(l, Result{Present: present(works...)})
		}
		for _, w := range works {
			if w := f.core.index.works[w.UID]; w.hub.answered == 0 {
				f.core.Next(BrokerQueue, w.key())
			}
		}
	}
	first := publishes()
	f.now = f.now.Add(time.Second)
	second := publishes()
	if first > 110 || second < 40 || second > 60 {
		t.Errorf("%d were published at once, and %d within a second", first, second)
	}
	f.seen(newWork("fresh", 1))
	f.deliver("uid-fresh")
}

func TestStatelessBroker_RepeatsDeletionUntilConfirmed(t *testing.T) {
	a := newWork("a", 3, withStatus(applied(3)))
	f := statelessFixture(t, a)
	f.deliver("uid-a")
	f.requested("cluster1")
	f.deleted("uid-a")
	f.idle(BrokerQueue, "uid-a")
	f.done(next[Get](f, HubQueue, "uid-a"), Result{Err: errNotFound()})
	f.idle(BrokerQueue, "uid-a")
	for range 2 {
		p := nextOf[Publish](f, BrokerQueue, Key{Cluster: "cluster1"})
		e, err := eventOf(p, f.id, f.now)
		if err != nil || e.Extensions()[codec.ExtDeletionTimestamp] == nil || len(e.Data()) == 0 {
			t.Fatalf("published %v, %v", e.Extensions(), err)
		}
		f.core.Done(BrokerQueue, Key{Cluster: "cluster1"}, Result{})
		f.now = f.now.Add(5 * time.Minute)
	}
	gone := report(a, 1, workv1.ManifestWorkStatus{})
	gone.Deleted = true
	f.core.Report(gone)
	f.clusterIdle("cluster1")
}

func TestParseAgentList_ErrorNamesField(t *testing.T) {
	build := func(change func(*codec.Event)) codec.Event {
		e, err := codec.NewSpecResyncRequest(codec.ResyncParams{
			ID: "e", Time: time.Unix(1, 0), Source: "agent", Cluster: "c", DataType: codec.ManifestBundles,
		}, []codec.ResourceVersion{{ResourceID: "x", ResourceVersion: 1}})
		if err != nil {
			t.Fatal(err)
		}
		change(&e)
		return e
	}
	l, err := ParseAgentList(build(func(*codec.Event) {}))
	if err != nil || l.Cluster != "c" || len(l.Versions) != 1 {
		t.Errorf("%+v, %v", l, err)
	}
	for name, change := range map[string]func(*codec.Event){
		codec.ExtSession: func(e *codec.Event) { e.SetExtension(codec.ExtSession, "x") },
		"data":           func(e *codec.Event) { e.DataEncoded = []byte("[]") },
	} {
		_, err := ParseAgentList(build(change))
		var a *codec.AttributeError
		if !errors.As(err, &a) || a.Attribute != name {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestStatelessBroker_FindsMissingWorksByDigest: changed labels keep the version of the work, so no status
// shows whether they arrived.
func TestStatelessBroker_FindsMissingWorksByDigest(t *testing.T) {
	a := newWork("a", 3, withStatus(applied(3)))
	f := statelessFixture(t, a)
	agent := f.ours("cluster1")
	f.requested("cluster1")
	f.deliver("uid-a")
	sum := digestOf(t, a).Digest
	other := codec.Digest{Count: 1, Sum: codec.DigestSum{1}}
	send := func(d codec.Digest) Effect {
		f.core.Keepalive(&Keepalive{Cluster: "cluster1", Digest: d, Stamp: agent.Stamp("hub")})
		e := f.core.Next(BrokerQueue, Key{Cluster: "cluster1"})
		if tag, ok := e.(Tag); ok {
			f.done(tag, Result{Tags: tag.Tags()})
			e = f.core.Next(BrokerQueue, Key{Cluster: "cluster1"})
		}
		return e
	}
	if e := send(sum); e != nil {
		t.Fatalf("equal digests lead to %T", e)
	}
	if e := send(other); e != nil {
		t.Fatalf("what may be under way leads to %T", e)
	}
	request, ok := send(other).(RequestStatuses)
	if !ok || request.Stamp.PeerSession != (codec.Session{}) || agent.Observe("hub", request.Stamp) != sessionfence.PeerUnaware {
		t.Fatalf("digests that stay different lead to %+v", request)
	}
	f.done(request, Result{Sent: 1})
	requests := 0
	for range 16 {
		if e, ok := send(other).(RequestStatuses); ok {
			f.done(e, Result{Sent: 1})
			requests++
		}
	}
	if requests != 3 { // at the fourth, the eighth and the sixteenth time
		t.Errorf("the agent gets %d more requests for digests that stay different", requests)
	}
}

func TestKeepalive_ErrorNamesField(t *testing.T) {
	e, err := codec.NewKeepalive(codec.SyncParams{ID: "e", Time: time.Unix(1, 0), Source: "agent", Cluster: "c", Owner: "hub"}, codec.Digest{Count: 2, Sum: codec.DigestSum{7}})
	if err != nil {
		t.Fatal(err)
	}
	a, err := KeepaliveOf(e)
	if err != nil || a.Cluster != "c" || a.Digest.Count != 2 || a.Digest.Sum != (codec.DigestSum{7}) {
		t.Errorf("%+v, %v", a, err)
	}
	e.DataEncoded = nil
	if _, err := KeepaliveOf(e); err == nil {
		t.Error("a digest is missing, and there is no error")
	}
}
