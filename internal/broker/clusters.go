package broker

import (
	"context"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// An agent says the uid of its cluster's namespace kube-system. The first that
// does gives its name to that cluster, and agents of another one are refused
// under it until an operator forgets the first. From the moment on at which
// another cluster has the name, whatever agents of the one before still say is
// about objects that nobody asks for: their subscriptions end, and with them
// what they published and the broker has not taken yet.

// enter registers a subscription.
func (b *Broker) enter(ctx context.Context, s *subscription) error {
	if s.part != codec.Spec {
		return b.hub.add(s, b.cfg.StreamsPerParty)
	}
	// Under one lock, so that no agent of the cluster before slips in behind the
	// one that takes its name.
	b.marking.Lock()
	defer b.marking.Unlock()
	if err := b.markCluster(ctx, s); err != nil {
		return err
	}
	return b.hub.add(s, b.cfg.StreamsPerParty)
}

// markCluster remembers that the cluster has an agent, and refuses an agent of
// another cluster that goes by the same name. b.marking is held.
func (b *Broker) markCluster(ctx context.Context, s *subscription) error {
	d, name, given := s.scope.DataType, s.scope.Cluster, s.hello.ClusterUID
	uid, known := b.store.Subscribed(d, name)
	if known && uid != "" && given != "" && uid != given {
		b.metrics.strangers.Inc()
		b.ledger.refused(place{d, name}, given, b.cfg.Now())
		b.log.Warn("agent of another cluster under a known name refused", "cluster", name, "known_uid", uid, "uid", given)
		return anotherCluster(name)
	}
	if known && (uid != "" || given == "") {
		return nil
	}
	return b.name(ctx, place{d, name}, given)
}

// name gives a name to the cluster with this uid, "" if its agent does not say.
// b.marking is held.
func (b *Broker) name(ctx context.Context, p place, uid string) error {
	if err := b.store.MarkSubscribed(ctx, p.dataType, p.cluster, uid); err != nil {
		return storeError(err)
	}
	if uid == "" {
		return nil
	}
	b.ledger.renamed(p.cluster)
	for _, s := range b.hub.agents(p.cluster) {
		if s.scope.DataType == p.dataType && s.hello.ClusterUID != "" && s.hello.ClusterUID != uid {
			s.stop(anotherCluster(p.cluster))
		}
	}
	return nil
}

// rename lets another cluster take over a name: the one whose agent was refused
// last, if it still comes, or else the first that comes.
func (b *Broker) rename(ctx context.Context, cluster string) (uid string, err error) {
	b.marking.Lock()
	defer b.marking.Unlock()
	waiting := map[codec.DataType]string{}
	for _, d := range codec.DataTypes() {
		if s := b.ledger.stranger(place{d, cluster}, b.cfg.Now()); s != "" {
			waiting[d], uid = s, s
		}
	}
	if err := b.store.ForgetCluster(ctx, cluster); err != nil {
		return "", storeError(err)
	}
	b.ledger.renamed(cluster)
	for d, uid := range waiting {
		if err := b.name(ctx, place{d, cluster}, uid); err != nil {
			return "", err
		}
	}
	return uid, nil
}

// anotherCluster is the answer to an agent whose name is another cluster's.
func anotherCluster(name string) *transport.Error {
	return &transport.Error{
		Code: transport.CodeDenied, Next: transport.NextStop,
		Message: "another cluster is known under the name " + name,
		Hint:    "if it was replaced for good, an operator runs: hawser forget cluster " + name,
	}
}
