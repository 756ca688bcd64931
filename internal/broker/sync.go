package broker

import (
	"context"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// publishSync takes a sync event that belongs to a subscription of its
// publisher.
func (b *Broker) publishSync(ctx context.Context, from identity.Identity, env *codec.Envelope, normal []byte, subscriptionID string) (string, error) {
	s := b.hub.named(subscriptionID, from)
	if s == nil {
		return "", invalid(codec.HeaderSubscriptionID, "the event names no running subscription of "+from.String()+" that speaks this protocol",
			"name the subscription that it belongs to; what belonged to one that ended is void")
	}
	e, err := codec.Unmarshal(normal)
	if err != nil {
		return "", undecodable(err)
	}
	switch kindOf(env) {
	case kindAck:
		a, err := codec.ParseAck(e)
		if err != nil {
			return "", undecodable(err)
		}
		return codec.OutcomeAccepted, b.acknowledged(s, a)
	case kindInventory:
		r, err := codec.ParseInventoryRequest(e)
		if err != nil {
			return "", undecodable(err)
		}
		return codec.OutcomeAccepted, b.requestPage(ctx, s, e.ID(), r, len(normal))
	case kindUnexplained:
		u, err := codec.ParseUnexplained(e)
		if err != nil {
			return "", undecodable(err)
		}
		return codec.OutcomeAccepted, b.noteUnexplained(s, u)
	default:
		c, err := codec.ParseCompared(e)
		if err != nil {
			return "", undecodable(err)
		}
		return codec.OutcomeAccepted, b.takeComparison(ctx, s, c, env.Order)
	}
}

// acknowledged takes a party's word that everything up to a cursor is safe with
// it.
func (b *Broker) acknowledged(s *subscription, a codec.Ack) error {
	head := b.store.Head()
	if a.Cursor.Epoch != head.Epoch || a.Cursor.Term != head.Term || !s.wasTold(a.Cursor.Revision) {
		return invalid("data", "the cursor is none that this subscription was told", "acknowledge the cursor of a checkpoint as it came")
	}
	if s.part == codec.Status {
		b.metrics.acked(s.part, ackNoted)
		b.burials.put(ownership{s.scope.DataType, s.scope.Owner}, a.Cursor.Revision)
		return nil
	}
	p, complain := s.confirm(a)
	switch p {
	case matched:
		b.metrics.acked(s.part, ackInSync)
		b.ledger.agrees(place{s.scope.DataType, s.scope.Cluster})
	case differs:
		b.metrics.acked(s.part, ackDiffers)
	case unproven:
		b.metrics.acked(s.part, ackNoted)
	}
	if complain {
		b.log.Warn("agent holds something else than the store, also after it listed it",
			"cluster", s.scope.Cluster, "subscription", s.id, "revision", a.Cursor.Revision, "works", a.Digest.Count)
	}
	return nil
}

// wasTold reports whether a party may have been told that it is so far.
func (s *subscription) wasTold(revision uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return revision <= s.sync.progress.Revision()
}

// confirm notes an agent's acknowledgement and returns what it proves, and
// whether that is worth a line in the log. One that comes so late that nobody
// remembers the digest proves nothing.
func (s *subscription) confirm(a codec.Ack) (p proof, complain bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	y := &s.sync
	y.acked = max(y.acked, a.Cursor.Revision)
	if a.Digest == nil {
		return unproven, false
	}
	for _, t := range y.told {
		if t.revision != a.Cursor.Revision {
			continue
		}
		if t.digest == *a.Digest {
			y.proof, y.ahead = matched, nil
			return matched, false
		}
		p = differs
	}
	if p == differs {
		y.proof = differs
		complain, y.complained = !y.complained, true
	}
	return p, complain
}

// named returns the running subscription with an id, if it is of this party and
// of Hawser's protocol.
func (h *hub) named(id string, party identity.Identity) *subscription {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.byID[id]
	if s == nil || s.party != party || s.hello.Protocol == 0 {
		return nil
	}
	return s
}

// notForAgents refuses what only sources ask for; the authorization table says
// so too, but for a party whose identity is what it claims.
func notForAgents(s *subscription) *transport.Error {
	if s.part == codec.Status {
		return nil
	}
	return invalid(codec.HeaderSubscriptionID, "the subscription is not one of a source", "name the subscription to the statuses of the source's works")
}
