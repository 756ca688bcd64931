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
// the subscriptions that it had before. Stock parties name none.

// session is the subscription that an event belongs to, and to no other.
type session struct {
	from identity.Identity
	sub  *subscription // nil: the event names none
}

// sessionOf returns the session of an event that from published.
func (b *Broker) sessionOf(from identity.Identity, subscriptionID string) (session, error) {
	s := session{from: from}
	if subscriptionID == "" {
		return s, nil
	}
	if s.sub = b.hub.named(subscriptionID, from); s.sub == nil || !s.sub.running() {
		return s, sessionOver()
	}
	return s, nil
}

// commit is that of the committer, for as long as the session runs.
func (b *Broker) commit(ctx context.Context, s session, ops ...store.Op) ([]store.Outcome, error) {
	if s.sub == nil {
		return b.commits.commit(ctx, s.from, ops...)
	}
	return b.commits.commitWhile(ctx, s.from, s.sub.running, ops...)
}

// supersede ends the earlier sessions of the source of s and waits until nothing
// that they published is queued any more.
func (b *Broker) supersede(ctx context.Context, s *subscription) error {
	for _, old := range b.hub.before(s) {
		old.stop(&transport.Error{
			Code: transport.CodeUnavailable, Next: transport.NextBackOff, Delay: comeBack,
			Message: "another session of " + s.party.String() + " compares what it owns",
			Hint:    "run one process for each source id, or let them elect a leader",
		})
	}
	_, err := b.commits.commit(ctx, s.party)
	if err != nil {
		return storeError(err)
	}
	return nil
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

// running reports whether the subscription was neither ended nor left.
func (s *subscription) running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end == nil && !s.released
}

func sessionOver() *transport.Error {
	return &transport.Error{
		Code: transport.CodeUnavailable, Next: transport.NextBackOff, Attribute: codec.HeaderSubscriptionID,
		Message: "the subscription that the event names is over", Hint: "publish it again through the next one",
	}
}
