package broker

import (
	"cmp"
	"slices"
	"time"

	"github.com/hawser-io/hawser/internal/broker/store"
)

// proof is what the last ack of an agent's subscription showed.
type proof uint8

const (
	unproven proof = iota // nothing was acknowledged, as by every stock agent
	matched               // it holds exactly the works of the store
	differs               // it holds something else, also after it listed it
)

// agentStream is one open subscription of an agent, for whoever looks.
type agentStream struct {
	place
	id      string    // of the subscription
	hawser  bool      // it negotiated Hawser's protocol
	since   time.Time // when it was opened
	pending int       // works that still have to be sent to it
	acked   uint64    // revision up to which it confirmed that it holds everything; 0: none
	proof   proof
}

// behind reports whether something was changed on its cluster since the agent
// confirmed.
func (a agentStream) behind(head store.ClusterHead) bool { return a.acked < head.SpecRevision }

// agentStreams returns the open subscriptions of agents, of every cluster where
// cluster is "", by place and age.
func (b *Broker) agentStreams(cluster string) []agentStream {
	var list []agentStream
	for _, s := range b.hub.agents(cluster) {
		list = append(list, s.shown())
	}
	slices.SortFunc(list, func(a, b agentStream) int {
		return cmp.Or(comparePlaces(a.place, b.place), a.since.Compare(b.since), cmp.Compare(a.id, b.id))
	})
	return list
}

// shown is the subscription for whoever looks.
func (s *subscription) shown() agentStream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return agentStream{
		place: place{dataType: s.scope.DataType, cluster: s.scope.Cluster},
		id:    s.id, hawser: s.hello.Protocol >= 1, since: s.since,
		pending: s.mail.Len(), acked: s.sync.acked, proof: s.sync.proof,
	}
}
