package feed

import (
	"context"
	"time"

	"github.com/hawser-io/hawser/internal/broker/authz"
	"github.com/hawser-io/hawser/internal/broker/call"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// stream is the goroutine that serves a subscription; only that one uses it.
type stream struct {
	agenda
	cfg      *Config
	registry *registry
	metrics  *metrics
	sub      *subscription
	out      transport.Stream
	stock    stock
	// forced are the versions that the agent listed of works that it is sent although it has
	// a newer version, until they were sent.
	forced map[string]int64
}

// Subscribe runs a subscription until ctx ends, the feed drains or out fails. The goroutine
// it is called on is the stream's only one.
func (f *Feed) Subscribe(ctx context.Context, p transport.Peer, raw transport.RawSubscription, out transport.Stream) error {
	s, err := f.open(p, raw)
	if err == nil {
		// The order matters: from here on every change reaches the mailbox, and only then may
		// the party believe that it is subscribed.
		err = f.enter(ctx, s)
	}
	f.metrics.subscribed(raw, err)
	if err != nil {
		return err
	}
	defer f.leave(s)
	accepted := f.accepted(s)
	if err := out.Accept(accepted); err != nil {
		return streamFailed(ctx, err)
	}
	f.metrics.accepted(s.part, accepted)
	t := &stream{cfg: f.cfg, registry: f.registry, metrics: f.metrics, sub: s, out: out, stock: stock{answered: notCompared}}
	if s.part == codec.Spec {
		if err := f.cfg.Claims.Deletions.Arrive(ctx, s.scope, s.party, cursorRevision(s.cursor)); err != nil {
			return err
		}
	}
	t.resume()
	t.start(f.cfg.Now(), f.cfg.Heartbeat, f.cfg.ListGrace)
	return t.serve(ctx)
}

// enter registers a subscription.
func (f *Feed) enter(ctx context.Context, s *subscription) (err error) {
	if s.hello.Protocol > 0 {
		f.cfg.Fences.Open(s.id, s.party, s.scope, s.stop)
	}
	add := func() error { return f.registry.add(s, f.cfg.StreamsPerParty) }
	if s.part == codec.Status {
		err = add()
	} else {
		err = f.cfg.Claims.Names.Enter(ctx, s.scope, s.hello.ClusterUID, func() error {
			err := add()
			if err == nil {
				f.cfg.Claims.Deletions.Enter(s.scope)
			}
			return err
		})
	}
	if err != nil {
		f.cfg.Fences.Close(s.id)
	}
	return err
}

// leave is the end of a subscription that has entered.
func (f *Feed) leave(s *subscription) {
	f.cfg.Fences.Close(s.id)
	head := f.cfg.Store.Head().Revision
	f.registry.remove(s)
	if s.part == codec.Spec {
		f.cfg.Claims.Deletions.Leave(s.scope, head)
	}
	s.leave()
}

// accepted is the header. A stock party learns its id and nothing else.
func (f *Feed) accepted(s *subscription) transport.Accepted {
	a := transport.Accepted{SubscriptionID: s.id}
	if s.hello.Protocol >= 1 {
		a.Protocol, a.Resync, a.MaxEventBytes = 1, codec.ResyncList, f.cfg.MaxEventBytes
		a.Epoch = f.cfg.Store.Head().Epoch
		if s.cursor != nil {
			a.Resync = codec.ResyncCursor
		}
	}
	return a
}

// open checks what was asked for and who asks.
func (f *Feed) open(p transport.Peer, raw transport.RawSubscription) (*subscription, error) {
	if err := f.registry.closing(); err != nil {
		return nil, err
	}
	d, err := codec.ParseDataType(raw.DataType)
	if err != nil {
		e := call.Undecodable(err)
		e.Attribute = "data_type"
		return nil, e
	}
	if _, ok := codec.Lookup(d); !ok {
		return nil, call.Invalid("data_type", "data type "+d.String()+" is not served", "use "+codec.ManifestBundles.String())
	}
	if (raw.Source == "") == (raw.Cluster == "") {
		return nil, call.Invalid("cluster_name", "a subscription names either a source or a cluster",
			"an agent gives its cluster_name, a source its source id")
	}
	part := codec.Spec
	if raw.Source != "" {
		part = codec.Status
	}
	asked := authz.Call{
		Method: authz.Subscribe, Type: codec.EventType{DataType: d, Subresource: part},
		Source: raw.Source, Cluster: raw.Cluster,
	}
	party := f.cfg.Identify(p, asked)
	if err := authz.Authorize(party, asked); err != nil {
		return nil, err
	}
	return &subscription{
		id: f.cfg.NewID(), hello: raw.Hello, conn: p.Conn, since: f.cfg.Now(), party: party,
		scope: store.Scope{DataType: d, Cluster: raw.Cluster, Owner: raw.Source}, part: part,
		cursor: f.cursorOf(raw.Hello), fences: f.cfg.Fences, mailed: f.metrics.mailed,
		applied: applied{budget: f.cfg.Applied, party: party}, wake: make(chan struct{}, 1),
	}, nil
}

// serve performs, one after the other, the steps that the subscription's state asks for.
func (t *stream) serve(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	slot := false // one of those for comparing; never occupied while anything is sent
	for ctx.Err() == nil {
		now := t.cfg.Now()
		slot = slot || t.wantsToCompare(now) && t.cfg.Slots.Try()
		// Before the mailbox is looked at: what was routed until here is in it.
		position := t.registry.position()
		st := t.next(now, slot, position)
		if slot && !st.reads() {
			t.cfg.Slots.Free()
		}
		slot = false
		switch st.kind {
		case finish:
			return st.err
		case idle:
			t.stock.routed(position)
			timer.Reset(st.until.Sub(now))
			slot = t.wait(ctx, timer)
		default:
			if err := t.perform(ctx, st); err != nil {
				return streamFailed(ctx, err)
			}
		}
	}
	if slot {
		t.cfg.Slots.Free()
	}
	return call.CallerGone(ctx)
}

// perform performs one step. Those that read much give the slot back.
func (t *stream) perform(ctx context.Context, st step) error {
	switch st.kind {
	case beat:
		t.metrics.heartbeats.Inc()
		return t.out.Send(codec.Heartbeat(t.cfg.NewID()))
	case fill:
		return t.fill(ctx)
	case compare:
		return t.compare(ctx, st.list)
	case inventory:
		return t.answerPage(ctx, st.page)
	case force:
		t.forceWaiting()
	case ask:
		return t.ask(st.chunk)
	case deliver:
		return t.deliver(ctx, st.entry)
	case checkpoint:
		return t.checkpoint(st.mark)
	case resolve:
		return t.sendEvent(codec.NewResolve(t.params(), st.resolve))
	case idle, finish:
	}
	return nil
}

// params is the envelope of a sync event to the party.
func (t *stream) params() codec.SyncParams {
	return codec.SyncParams{
		ID: t.cfg.NewID(), Time: t.cfg.Now(), Source: call.BrokerSource,
		Cluster: t.sub.scope.Cluster, Owner: t.sub.scope.Owner,
	}
}

// sendEvent sends an event that the broker made.
func (t *stream) sendEvent(e codec.Event, err error) error {
	if err != nil {
		return call.Internal(err)
	}
	event, err := codec.Marshal(e)
	if err != nil {
		return call.Internal(err)
	}
	return t.out.Send(event)
}

// wait returns when something was put into the subscription, the timer fires, ctx ends, or,
// where a comparison is due, a slot for it became free; the result says whether the stream
// now occupies one.
func (t *stream) wait(ctx context.Context, timer *time.Timer) bool {
	var free chan<- struct{}
	if t.wantsToCompare(t.cfg.Now()) {
		free = t.cfg.Slots
	}
	select {
	case <-t.sub.wake:
	case <-timer.C:
	case <-ctx.Done():
	case free <- struct{}{}:
		return true
	}
	return false
}

// streamFailed is the end of a stream that could not be written to, or whose records could
// not be read.
func streamFailed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return call.CallerGone(ctx)
	}
	if e, ok := err.(*transport.Error); ok { //nolint:errorlint // only our own are already what the peer is told
		return e
	}
	return &transport.Error{Code: transport.CodeUnavailable, Message: "the stream broke", Err: err}
}
