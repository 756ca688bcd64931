package broker

import (
	"context"
	"time"

	"github.com/hawser-io/hawser/internal/broker/authz"
	"github.com/hawser-io/hawser/internal/broker/route"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Subscribe implements [transport.Server]. The goroutine it is called on is the
// stream's only one.
func (b *Broker) Subscribe(ctx context.Context, p transport.Peer, raw transport.RawSubscription, out transport.Stream) (err error) {
	defer b.recovered(&err)
	s, err := b.subscribe(p, raw)
	if err == nil {
		// The order matters: from here on every change reaches the mailbox, and
		// only then may the party believe that it is subscribed.
		err = b.enter(ctx, s)
	}
	b.metrics.subscribed(raw, err)
	if err != nil {
		return err
	}
	defer s.release()
	defer func() { b.hub.remove(s, b.store.Head().Revision) }()
	defer b.unexplained.drop(s)
	accepted := b.accepted(s)
	if err := out.Accept(accepted); err != nil {
		return streamFailed(ctx, err)
	}
	b.metrics.accepted(s.part, accepted)
	if err := b.takeOver(ctx, s); err != nil {
		return err
	}
	b.resume(s)
	now := b.cfg.Now()
	s.nextBeat, s.graceEnd = now.Add(b.cfg.Heartbeat), now.Add(b.cfg.ListGrace)
	return b.serve(ctx, s, out)
}

// accepted is the header. A stock party learns its id and nothing else.
func (b *Broker) accepted(s *subscription) transport.Accepted {
	a := transport.Accepted{SubscriptionID: s.id}
	if s.hello.Protocol >= 1 {
		a.Protocol, a.Resync, a.MaxEventBytes = 1, codec.ResyncList, b.cfg.MaxEventBytes
		a.Epoch = b.store.Head().Epoch
		if s.cursor != nil {
			a.Resync = codec.ResyncCursor
		}
	}
	return a
}

// subscribe checks what was asked for and who asks.
func (b *Broker) subscribe(p transport.Peer, raw transport.RawSubscription) (*subscription, error) {
	if err := b.hub.closing(); err != nil {
		return nil, err
	}
	d, err := codec.ParseDataType(raw.DataType)
	if err != nil {
		e := undecodable(err)
		e.Attribute = "data_type"
		return nil, e
	}
	if _, ok := codec.Lookup(d); !ok {
		return nil, invalid("data_type", "data type "+d.String()+" is not served", "use "+codec.ManifestBundles.String())
	}
	if (raw.Source == "") == (raw.Cluster == "") {
		return nil, invalid("cluster_name", "a subscription names either a source or a cluster",
			"an agent gives its cluster_name, a source its source id")
	}
	s := &subscription{
		id: b.cfg.NewID(), hello: raw.Hello, conn: p.Conn, since: b.cfg.Now(),
		scope:    route.Scope{DataType: d, Cluster: raw.Cluster, Owner: raw.Source},
		part:     codec.Spec,
		wake:     make(chan struct{}, 1),
		answered: notCompared,
		mailed:   b.metrics.mailed,
	}
	if raw.Source != "" {
		s.part = codec.Status
	}
	call := authz.Call{
		Method: authz.Subscribe, Type: codec.EventType{DataType: d, Subresource: s.part},
		Source: raw.Source, Cluster: raw.Cluster,
	}
	s.party = b.identify(p, call)
	if err := authz.Authorize(s.party, call); err != nil {
		return nil, err
	}
	s.cursor = b.cursorOf(raw.Hello)
	return s, nil
}

// identify returns who a peer is. Where the configuration allows it, one that
// gave no identity is who it says it is.
func (b *Broker) identify(p transport.Peer, c authz.Call) identity.Identity {
	id := identity.Identity{Role: identity.Role(p.Role), Name: p.Name}
	if id == (identity.Identity{}) && b.cfg.Insecure {
		return authz.Claimed(c)
	}
	return id
}

// serve performs, one after the other, the steps that the subscription's state
// asks for.
func (b *Broker) serve(ctx context.Context, s *subscription, out transport.Stream) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	slot := false // one of those for comparing; never held while anything is sent
	for ctx.Err() == nil {
		now := b.cfg.Now()
		slot = slot || s.wantsToCompare(now) && b.trySlot()
		// Before the mailbox is looked at: what was routed until here is in it.
		position := b.hub.position()
		st := s.next(now, b.cfg.Heartbeat, slot, position)
		if slot && !st.reads() {
			<-b.comparing
		}
		slot = false
		switch st.kind {
		case finish:
			return st.err
		case idle:
			if position >= s.answered {
				s.deleted, s.early = nil, nil
			}
			timer.Reset(st.until.Sub(now))
			slot = b.wait(ctx, s, timer)
		default:
			if err := b.take(ctx, s, out, st); err != nil {
				return streamFailed(ctx, err)
			}
		}
	}
	if slot {
		<-b.comparing
	}
	return callerGone(ctx)
}

// take performs one step. Those that read much give the slot back.
func (b *Broker) take(ctx context.Context, s *subscription, out transport.Stream, st step) error {
	switch st.kind {
	case beat:
		b.metrics.heartbeats.Inc()
		return out.Send(codec.Heartbeat(b.cfg.NewID()))
	case fill:
		return b.fill(ctx, s)
	case compare:
		return b.compare(ctx, s, st.list)
	case inventory:
		return b.answerPage(ctx, s, out, st.page)
	case overrule:
		b.overrule(s)
	case ask:
		return b.ask(s, out, st.chunk)
	case deliver:
		return b.deliver(ctx, s, out, st.entry)
	case checkpoint:
		return b.checkpoint(s, out, st.mark)
	case resolve:
		return b.sendResolve(s, out, st.resolve)
	case idle, finish:
	}
	return nil
}

func (b *Broker) trySlot() bool {
	select {
	case b.comparing <- struct{}{}:
		return true
	default:
		return false
	}
}

// wait returns when something was put into s, the timer fires, ctx ends, or,
// where a comparison is due, a slot for it became free; the result says whether
// the stream now holds one.
func (b *Broker) wait(ctx context.Context, s *subscription, timer *time.Timer) bool {
	var free chan<- struct{}
	if s.wantsToCompare(b.cfg.Now()) {
		free = b.comparing
	}
	select {
	case <-s.wake:
	case <-timer.C:
	case <-ctx.Done():
	case free <- struct{}{}:
		return true
	}
	return false
}

// streamFailed is the end of a stream that could not be written to, or whose
// records could not be read.
func streamFailed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return callerGone(ctx)
	}
	if e, ok := err.(*transport.Error); ok { //nolint:errorlint // only our own are already what the peer is told
		return e
	}
	return &transport.Error{Code: transport.CodeUnavailable, Message: "the stream broke", Err: err}
}
