package broker

import (
	"context"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// A connection that broke may hold a publish back, and deliver it when the
// party has connected again and compared what there is: the comparison would
// not repair what the publish then does. So an event that names a subscription
// counts only while that is running, and a source that asks what there is ends
// the subscriptions that it had before, as does one that releases a cluster. Stock
// parties name none. What must not change places within a subscription either is
// numbered by the source; see order.

// session is the subscription that an event belongs to, and to no other.
type session struct {
	from identity.Identity
	sub  *subscription // nil: the event names none
	// void says why the event counts no longer, nil while it does; it is nil itself
	// where the event names no subscription.
	void func() *transport.Error
}

// sessionOf returns the session of an event that from published.
func (b *Broker) sessionOf(from identity.Identity, subscriptionID string, env *codec.Envelope) (session, error) {
	s := session{from: from}
	if subscriptionID == "" {
		return s, nil
	}
	sub, cluster, order := b.hub.named(subscriptionID, from), env.Cluster, env.Order
	if sub == nil {
		return s, sessionOver()
	}
	s.sub, s.void = sub, func() *transport.Error { return sub.void(cluster, order) }
	if err := s.void(); err != nil {
		return s, err
	}
	return s, nil
}

// commit is that of the committer, for as long as the event counts.
func (b *Broker) commit(ctx context.Context, s session, ops ...store.Op) ([]store.Outcome, error) {
	return b.commits.commitUnless(ctx, s.from, s.void, ops...)
}

// supersede ends the earlier sessions of the source of s and waits until nothing
// that they published is queued any more.
func (b *Broker) supersede(ctx context.Context, s *subscription) error {
	b.endBefore(s)
	_, err := b.commits.commit(ctx, s.party)
	if err != nil {
		return storeError(err)
	}
	return nil
}

// endBefore ends the earlier sessions of the source of s.
func (b *Broker) endBefore(s *subscription) {
	for _, old := range b.hub.before(s) {
		old.stop(&transport.Error{
			Code: transport.CodeUnavailable, Next: transport.NextBackOff, Delay: comeBack,
			Message: "another session of " + s.party.String() + " compares what it owns, or releases a cluster",
			Hint:    "run one process for each source id, or let them elect a leader",
		})
	}
}

// before returns the running subscriptions of the same scope that were added
// earlier and speak Hawser's protocol.
func (h *hub) before(s *subscription) []*subscription {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []*subscription
	for _, o := range h.index.Get(s.scope) {
		if o.serial < s.serial && o.hello.Protocol > 0 {
			all = append(all, o)
		}
	}
	return all
}

func sessionOver() *transport.Error {
	return &transport.Error{
		Code: transport.CodeUnavailable, Next: transport.NextBackOff, Attribute: codec.HeaderSubscriptionID,
		Message: "the subscription that the event names is over", Hint: "publish it again through the next one",
	}
}
