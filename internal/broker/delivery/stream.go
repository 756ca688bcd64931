package delivery

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/hawser-io/hawser/internal/broker/agentstatus"
	"github.com/hawser-io/hawser/internal/broker/authz"
	"github.com/hawser-io/hawser/internal/broker/deliveryqueue"
	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/syncstate"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// stream serves a subscription, in turns. It has a goroutine only during a turn.
type stream struct {
	agenda
	cfg      *settings.Config
	sync     *syncstate.State
	intake   Intake
	registry *registry
	metrics  *metrics
	peers    *agentstatus.Peers
	sub      *subscription
	out      transport.Stream
	ocm      ocmAgentState
	beats    settings.Schedule
	// forced has an entry for each forced work that is not sent yet: the newer version that the agent listed.
	forced       map[string]int64
	disconnected disconnectedNotice
	leave        func() // removes the subscription
	// slot is the request for a slot that a comparison waits for; nil: none waits.
	slot *syncstate.SlotRequest
	// delivered is true if a record was delivered since the stream was last idle.
	delivered bool
}

// Open begins a subscription. The caller runs its turns until ctx ends, the feed drains or out fails.
func (f *Feed) Open(ctx context.Context, p transport.Peer, raw transport.RawSubscription, out transport.Stream) (request.Stream, error) {
	if err := f.reach(ctx); err != nil {
		return nil, err
	}
	s, err := f.open(p, raw)
	if err == nil {
		// Register first: from here on each change reaches the queue. Only then may the client receive the acceptance.
		err = f.enter(ctx, s)
	}
	f.metrics.subscribed(raw, err)
	if err != nil {
		f.refused(p, raw, err)
		return nil, err
	}
	var t *stream
	defer func() {
		if t == nil { // also after a panic
			f.leave(s)
		}
	}()
	if t, err = f.accept(ctx, p, s, out); err != nil {
		return nil, err
	}
	return t, nil
}

// reach waits until this broker has followed the store up to its present head. A client may come from another
// broker, with a cursor, a binding or a status that this one does not have yet.
func (f *Feed) reach(ctx context.Context) error {
	err := f.cfg.Store.Reach(ctx)
	if err == nil {
		err = f.await(ctx, f.cfg.Store.Head().Revision)
	}
	return request.StoreCall(ctx, err)
}

// accept sends the acceptance of a registered subscription, and returns its stream.
func (f *Feed) accept(ctx context.Context, p transport.Peer, s *subscription, out transport.Stream) (*stream, error) {
	// Check again: the admission may have been withdrawn after the first check and before the subscription was
	// registered.
	if err := f.admitted(s); err != nil {
		return nil, err
	}
	if s.part == codec.Spec {
		f.EndFormer(s.scope, []string{s.hello.Former})
		f.peers.Connected(s.scope, agentstatus.Facts{Address: p.Addr, Version: s.hello.Version, Transport: p.Transport, CertificateEnds: p.CertificateEnds}, s.hello.Former)
	}
	accepted := f.accepted(s)
	if err := out.Accept(accepted); err != nil {
		return nil, request.StreamBroken(ctx, err)
	}
	f.metrics.accepted(s.part, accepted)
	t := &stream{
		leave: func() { f.leave(s) }, cfg: f.cfg, sync: f.sync, intake: f.intake, registry: f.registry, metrics: f.metrics,
		peers: f.peers, sub: s, out: out, ocm: ocmAgentState{answered: notSynced}, beats: f.cfg.Beats.Schedule(p, s.hello.Heartbeat),
	}
	if s.part == codec.Spec {
		if err := f.sync.Deletions.ReplaceTombstones(ctx, s.scope, s.client, cursorRevision(s.cursor)); err != nil {
			return nil, err
		}
	}
	t.resume()
	now := f.cfg.Now()
	t.nextBeat, t.graceEnd = t.beats.Next(now), now.Add(f.cfg.ListGrace)
	return t, nil
}

// admitted returns the error for an agent that may not subscribe to works, else nil.
func (f *Feed) admitted(s *subscription) error {
	if s.part == codec.Status {
		return nil
	}
	return f.admits(s.scope.Cluster)
}

// enter registers a subscription.
func (f *Feed) enter(ctx context.Context, s *subscription) (err error) {
	if err := f.admitted(s); err != nil {
		return err
	}
	if s.hello.Protocol > 0 {
		f.intake.Open(s.id, s.client, s.scope, s.stop)
	}
	add := func() error { return f.registry.add(s, f.cfg.StreamsPerClient) }
	if s.part == codec.Status {
		err = add()
	} else {
		err = f.sync.Names.Bind(ctx, s.scope, s.hello.ClusterUID, func() error {
			err := add()
			if err == nil {
				f.sync.Deletions.Enter(s.scope)
			}
			return err
		})
	}
	if err != nil {
		f.intake.Close(s.id)
	}
	return err
}

// leave removes a registered subscription.
func (f *Feed) leave(s *subscription) {
	f.intake.Close(s.id)
	head := f.cfg.Store.Head().Revision
	f.registry.remove(s)
	if s.part == codec.Spec {
		f.sync.Deletions.Leave(s.scope, head)
		f.peers.Disconnected(s.scope)
	}
	s.leave()
}

// refused records a rejected subscription in the facts about the cluster that the client named.
func (f *Feed) refused(p transport.Peer, raw transport.RawSubscription, err error) {
	e := (*transport.Error)(nil)
	switch {
	case raw.Cluster == "" || !errors.As(err, &e) || e.Code != transport.CodeDenied:
	case p.Role == string(identity.Agent) && p.Name != raw.Cluster:
		f.peers.Refused(raw.Cluster, "its agent used the certificate of cluster "+p.Name+": put the certificate of "+raw.Cluster+" into its Secret")
	default:
		f.peers.Refused(raw.Cluster, e.Message)
	}
}

// accepted returns the header of the stream.
func (f *Feed) accepted(s *subscription) transport.Accepted {
	a := f.cfg.Accepted(s.id, s.hello.Protocol)
	if s.cursor != nil { // only a Hawser client has one
		a.Resync = codec.ResyncCursor
	}
	return a
}

// checkNames rejects names that cannot be stored or displayed.
func checkNames(raw *transport.RawSubscription) error {
	return cmp.Or(codec.CheckName("data_type", raw.DataType), codec.CheckName("source", raw.Source),
		codec.CheckName("cluster_name", raw.Cluster), codec.CheckName(codec.HeaderClusterUID, raw.Hello.ClusterUID),
		codec.CheckName(codec.HeaderFormer, raw.Hello.Former))
}

// open checks the requested subscription and the identity of the client.
func (f *Feed) open(p transport.Peer, raw transport.RawSubscription) (*subscription, error) {
	if err := f.Closing(); err != nil {
		return nil, err
	}
	d, err := codec.ParseDataType(raw.DataType)
	if err = cmp.Or(checkNames(&raw), err); err != nil {
		e := transport.Undecodable(err)
		if e.Attribute == "type" {
			e.Attribute = "data_type"
		}
		return nil, e
	}
	if _, ok := codec.Lookup(d); !ok {
		return nil, request.Invalid("data_type", "data type "+d.String()+" is not served", "use "+codec.ManifestBundles.String())
	}
	if (raw.Source == "") == (raw.Cluster == "") {
		return nil, request.Invalid("cluster_name", "a subscription names either a source or a cluster",
			"an agent gives its cluster_name, a source its source id")
	}
	part := codec.Spec
	if raw.Source != "" {
		part = codec.Status
	}
	owner, err := authz.Subscriber(p, raw, codec.EventType{DataType: d, Subresource: part}, f.cfg.Insecure)
	if err != nil {
		return nil, err
	}
	scope := store.Scope{DataType: d, Cluster: raw.Cluster, Owner: raw.Source}
	s := &subscription{
		id: f.cfg.NewID(), hello: raw.Hello, conn: p.Conn, transport: p.Transport, since: f.cfg.Now(), client: owner, scope: scope, part: part,
		cursor: f.cursorOf(raw.Hello), intake: f.intake, wake: taskgroup.NewTurns(),
		list: f.sync.Lists.Open(scope, owner), orphans: orphanReport{budget: f.orphanBudget, client: owner}, mail: newQueue(part),
	}
	return s, nil
}

// Turn performs all steps that are due. It returns the time of the next turn, unless the wake of the stream
// rings before. An error ends the stream.
func (t *stream) Turn(ctx context.Context) (next time.Time, err error) {
	for ctx.Err() == nil {
		now := t.cfg.Now()
		slot := t.takeSlot(now) // never held while sending
		// Read the position before the queue, so that the queue has all changes up to the position.
		position := t.registry.position()
		st := t.next(now, slot, position)
		if slot && !st.reads() {
			t.sync.Slots.Free()
		}
		switch st.kind {
		case finish:
			return next, st.err
		case idle:
			if t.slot == nil && t.wantsToCompare(now) {
				continue // the client sent no list in time, and an empty one was queued
			}
			t.ocm.routed(position)
			t.afterDelivery()
			return st.until, nil
		default:
			if err := t.perform(ctx, st); err != nil {
				return next, request.StreamBroken(ctx, err)
			}
		}
	}
	return next, request.CallerGone(ctx)
}

// takeSlot returns true if a step that reads many records is due and the stream has a slot for it. If it is due
// and all slots are taken, the stream is woken when it has one.
func (t *stream) takeSlot(now time.Time) bool {
	if !t.wantsToCompare(now) {
		t.cancelSlot()
		return false
	}
	if t.slot == nil {
		t.slot = syncstate.NewSlotRequest(t.sub.wake.Ring)
	}
	if !t.sync.Slots.Take(t.slot) {
		return false
	}
	t.slot = nil
	return true
}

// cancelSlot ends the waiting for a slot.
func (t *stream) cancelSlot() {
	if t.slot != nil {
		t.sync.Slots.Cancel(t.slot)
		t.slot = nil
	}
}

// Wake returns the bell of the stream.
func (t *stream) Wake() *taskgroup.Turns { return t.sub.wake }

// Leave releases what the stream has used. It is called once, after the last turn.
func (t *stream) Leave() {
	t.cancelSlot()
	t.leave()
}

// afterDelivery updates the state of the cluster when nothing is left to send. Mostly the next ack does that.
// Only an agent that has acknowledged everything before becomes in sync without another ack.
func (t *stream) afterDelivery() {
	s := t.sub
	if t.delivered && s.part == codec.Spec && s.state(t.cfg.Store.ClusterHead(s.scope.DataType, s.scope.Cluster)) == agentstatus.InSync {
		t.peers.Refresh(s.scope)
	}
	t.delivered = false
}

// perform performs one step. Steps that read many records free the slot.
func (t *stream) perform(ctx context.Context, st step) error {
	switch st.kind {
	case sendHeartbeat:
		t.metrics.heartbeats.Inc()
		if err := t.out.Send(t.cfg.Beats.Event(t.cfg.Now())); err != nil {
			return err
		}
		return t.sendDisconnected()
	case fillFromCursor:
		return t.fillFromCursor(ctx)
	case compare:
		return t.compare(ctx, st.list)
	case inventory:
		return t.answerPage(ctx, st.page)
	case recheckAhead:
		t.forceQueued()
	case requestStatuses:
		return t.requestStatuses(st.chunk)
	case deliver:
		t.delivered = true
		return t.deliver(ctx, st.entry)
	case checkpoint:
		return t.checkpoint(st.checkpoint)
	case resolve:
		return t.sendEvent(codec.NewResolveOrphan(t.params(), st.resolve))
	case idle, finish:
	}
	return nil
}

// params returns the envelope of a sync event to the client.
func (t *stream) params() codec.SyncParams {
	return codec.SyncParams{
		ID: t.cfg.NewID(), Time: t.cfg.Now(), Source: request.BrokerSource,
		Cluster: t.sub.scope.Cluster, Owner: t.sub.scope.Owner,
	}
}

// sendEvent sends an event that the broker made.
func (t *stream) sendEvent(e codec.Event, err error) error {
	event, err := request.Encode(e, err)
	if err != nil {
		return err
	}
	return t.out.Send(event)
}

// step is the next action of a stream.
type step struct {
	kind       stepKind
	entry      deliveryqueue.Entry
	list       *list
	page       *pageRequest
	chunk      []codec.StatusHash
	checkpoint pendingCheckpoint
	resolve    codec.ResolveOrphan
	err        *transport.Error
	until      time.Time
}

type stepKind uint8

const (
	idle            stepKind = iota // wait until something is put or until step.until
	finish                          // the stream ends with step.err
	sendHeartbeat                   // send a heartbeat
	fillFromCursor                  // put the changes since the cursor into the queue
	compare                         // compare step.list
	inventory                       // answer step.page
	recheckAhead                    // check the ahead works again
	requestStatuses                 // ask the agent for the statuses of step.chunk
	deliver                         // send the record of step.entry
	checkpoint                      // send step.checkpoint
	resolve                         // send step.resolve
)

// reads reports whether the step reads many records and therefore needs a slot for comparing.
func (st *step) reads() bool {
	return st.kind == fillFromCursor || st.kind == compare || st.kind == inventory
}

// agenda contains the work of a stream besides that in its subscription.
type agenda struct {
	nextBeat, graceEnd time.Time
	// calm is the time before which no further comparison starts.
	calm time.Time
	// hashes are the status requests that are still to be sent to an agent, in chunks.
	hashes [][]codec.StatusHash
	// requesting is true if the next event to send is not from the queue; it alternates.
	requesting bool
}

// calmFactor is the pause of a stream after a comparison, as a multiple of its duration. So a client that sends
// lists without a pause uses at most a tenth of one CPU.
const calmFactor = 9

// calmDown delays the next comparison after one that ended now.
func (a *agenda) calmDown(now time.Time, took time.Duration) { a.calm = now.Add(calmFactor * took) }

// request replaces the status requests for an agent.
func (a *agenda) request(chunks [][]codec.StatusHash) { a.hashes = chunks }

// next returns the next step of the stream at the time now. mayCompare is true if a step that reads many
// records may start now. position is that of the registry before the call. A heartbeat that is due comes before
// any step that could delay it.
func (t *stream) next(now time.Time, mayCompare bool, position uint64) step {
	s := t.sub
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil {
		return step{kind: finish, err: s.end}
	}
	if !now.Before(t.nextBeat) {
		t.nextBeat = t.beats.Next(now)
		s.holdback.prune(now)
		return step{kind: sendHeartbeat}
	}
	if len(s.orphans.orders) > 0 {
		return step{kind: resolve, resolve: pop(&s.orphans.orders)}
	}
	for _, e := range s.holdback.due(now) {
		s.mail.Return(e)
	}
	if s.phase == awaitingClient && !now.Before(t.graceEnd) {
		s.listTimeout()
	}
	if st, ok := t.nextRead(now, mayCompare); ok {
		return st
	}
	if st, ok := t.nextSent(now, position); ok {
		return st
	}
	return step{kind: idle, until: t.until(now, position)}
}

// nextRead returns the next step that reads many records.
func (t *stream) nextRead(now time.Time, mayCompare bool) (st step, ok bool) {
	s := t.sub
	switch {
	case !mayCompare || !t.hasToRead(now):
		return st, false
	case s.phase == filling:
		return step{kind: fillFromCursor}, true
	case len(s.requests) > 0:
		return step{kind: compare, list: pop(&s.requests)}, true
	case t.mayRequest():
		return step{kind: inventory, page: pop(&s.pages)}, true
	}
	return st, false
}

// mayRequest reports whether something other than a queue entry may be sent now. If so, the following event
// comes from the queue.
func (t *stream) mayRequest() bool {
	mine := t.requesting || t.sub.mail.Len() == 0
	if mine {
		t.requesting = false
	}
	return mine
}

// hasToRead reports whether a step that reads many records is due.
func (t *stream) hasToRead(now time.Time) bool {
	return (t.sub.phase == filling || len(t.sub.requests)+len(t.sub.pages) > 0) && !now.Before(t.calm)
}

// wantsToCompare reports whether a step that reads many records is due, for any value of mayCompare.
func (t *stream) wantsToCompare(now time.Time) bool {
	t.sub.mu.Lock()
	defer t.sub.mu.Unlock()
	return t.hasToRead(now)
}

// nextSent returns the next step that sends, or prepares to send.
func (t *stream) nextSent(now time.Time, position uint64) (st step, ok bool) {
	s := t.sub
	if s.rechecks() {
		return step{kind: recheckAhead}, true
	}
	if m, ok := s.partialCheckpoint(now, position); ok {
		return step{kind: checkpoint, checkpoint: m}, true
	}
	if len(t.hashes) > 0 && t.mayRequest() {
		return step{kind: requestStatuses, chunk: pop(&t.hashes)}, true
	}
	if e, ok := s.mail.Next(); ok {
		t.requesting = true
		s.sync.progress.Touch()
		return step{kind: deliver, entry: e}, true
	}
	if m, ok := s.completeCheckpoint(now, position); ok {
		return step{kind: checkpoint, checkpoint: m}, true
	}
	return st, false
}

// until returns the time at which next must be called again although nothing was put into the subscription.
func (t *stream) until(now time.Time, position uint64) time.Time {
	s := t.sub
	first := t.nextBeat
	earlier := func(u time.Time) {
		if u.Before(first) {
			first = u
		}
	}
	if s.phase == awaitingClient {
		earlier(t.graceEnd)
	}
	if len(s.requests)+len(s.pages) > 0 && now.Before(t.calm) {
		earlier(t.calm)
	}
	if len(s.holdback.later) > 0 {
		earlier(s.holdback.look)
	}
	if u, ok := s.sync.progress.Deadline(position); ok && s.phase.idle() {
		earlier(u)
	}
	return first
}
