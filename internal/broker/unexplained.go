package broker

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

const (
	// unexplainedBytes is for what agents say that no work explains, of all
	// clusters; what comes beyond is counted and not named.
	unexplainedBytes = 64 << 20
	// maxResolves is how many orders of operators may wait for an agent.
	maxResolves = 1000
)

// unexplained is what agents say that no work explains, for as long as their
// subscriptions live. Its methods may be called concurrently.
type unexplained struct {
	mu    sync.Mutex
	bytes int
	said  map[*subscription]codec.Unexplained
}

func newUnexplained() *unexplained { return &unexplained{said: map[*subscription]codec.Unexplained{}} }

func sizeOf(u codec.Unexplained) (n int) {
	for _, r := range u.Records {
		n += 128 + len(r.UID) + len(r.Name) + len(r.Outcome)
	}
	return n
}

// put replaces what a subscription said before.
func (x *unexplained) put(s *subscription, u codec.Unexplained) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.bytes -= sizeOf(x.said[s])
	delete(x.said, s)
	if x.bytes+sizeOf(u) > unexplainedBytes {
		u = codec.Unexplained{More: u.More + uint64(len(u.Records))}
	}
	if len(u.Records) == 0 && u.More == 0 {
		return
	}
	x.bytes += sizeOf(u)
	x.said[s] = u
}

func (x *unexplained) drop(s *subscription) { x.put(s, codec.Unexplained{}) }

// at returns what a subscription said last.
func (x *unexplained) at(s *subscription) codec.Unexplained {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.said[s]
}

// noteUnexplained takes what an agent says. One whose stream has ended
// meanwhile has nothing to say any more:
//
//	t1  the publish finds the subscription
//	t2  the stream ends, is removed from the hub and dropped here
//	t3  the publish puts what it has, which nobody would drop
//
// Therefore it is looked for again after t3.
func (b *Broker) noteUnexplained(s *subscription, u codec.Unexplained) error {
	if s.part != codec.Spec {
		return invalid(codec.HeaderSubscriptionID, "the subscription is not one of an agent", "name the subscription to the works of the agent's cluster")
	}
	b.unexplained.put(s, u)
	if b.hub.named(s.id, s.party) != s {
		b.unexplained.drop(s)
	}
	return nil
}

// listUnexplained sends what the agents of a cluster, or of all, say.
func (b *Broker) listUnexplained(cluster string, now time.Time, send func(*hawserv1.ListOrphansResponse) error) error {
	subscriptions := b.hub.agents(cluster)
	slices.SortFunc(subscriptions, func(x, y *subscription) int { return comparePlaces(x.place(), y.place()) })
	told := map[string]bool{} // several agents of one cluster see the same
	for _, s := range subscriptions {
		u := b.unexplained.at(s)
		for _, r := range u.Records {
			key := s.scope.Cluster + " " + r.UID
			if told[key] {
				continue
			}
			told[key] = true
			if err := send(unexplainedOf(s.scope.Cluster, r, now)); err != nil {
				return err
			}
		}
		if u.More > 0 {
			err := send(&hawserv1.ListOrphansResponse{
				Cluster: s.scope.Cluster, Cause: hawserv1.OrphanCause_ORPHAN_CAUSE_NO_OWNER, Detail: fmt.Sprintf("and %d more AppliedManifestWorks, which are counted and not named", u.More),
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func unexplainedOf(cluster string, r codec.UnexplainedRecord, now time.Time) *hawserv1.ListOrphansResponse {
	o := &hawserv1.ListOrphansResponse{Cluster: cluster, Cause: hawserv1.OrphanCause_ORPHAN_CAUSE_NO_OWNER, ResourceId: r.UID, Name: r.Name}
	age := "an unknown age"
	if !r.Created.IsZero() {
		age = now.Sub(r.Created).Truncate(time.Second).String()
	}
	o.Detail = fmt.Sprintf("AppliedManifestWork with %d objects, %s old, and no work", r.Objects, age)
	if r.Shared {
		o.Cause = hawserv1.OrphanCause_ORPHAN_CAUSE_SHARED
		o.Detail = fmt.Sprintf("AppliedManifestWork of another hub with %d objects, %s old", r.Objects, age)
	}
	if r.Outcome != "" {
		o.Detail += "; " + r.Outcome
	}
	return o
}

func (s *subscription) place() place { return place{s.scope.DataType, s.scope.Cluster} }

// resolveUnexplained hands an operator's order to the agents of a cluster that
// named an AppliedManifestWork.
func (b *Broker) resolveUnexplained(by identity.Identity, cluster, uid string, adopt bool) (name string, err error) {
	subscriptions := b.hub.agents(cluster)
	if len(subscriptions) == 0 {
		return "", &transport.Error{
			Code: transport.CodeUnavailable, Next: transport.NextBackOff, Message: "no agent of cluster " + cluster + " is connected",
			Hint: "hawser get clusters shows who is; try again when the agent is there",
		}
	}
	for _, s := range subscriptions {
		u := b.unexplained.at(s)
		i := slices.IndexFunc(u.Records, func(r codec.UnexplainedRecord) bool { return r.UID == uid })
		switch {
		case i < 0:
			continue
		case u.Records[i].Shared:
			return "", &transport.Error{
				Code: transport.CodeConflict, Next: transport.NextStop, Message: u.Records[i].Name + " belongs to another hub",
				Hint: "the owner of the cluster can hand it over with: hawser move",
			}
		}
		name = u.Records[i].Name
		if !s.orderResolve(codec.Resolve{UID: uid, Name: name, Adopt: adopt}) {
			return "", overloaded("too many orders wait for the agent of cluster "+cluster, time.Minute)
		}
	}
	if name == "" {
		return "", notFound("no agent of cluster "+cluster+" has an AppliedManifestWork without an owner with the uid "+uid, "hawser get orphans --cluster "+cluster+" shows those there are")
	}
	b.log.Info("an operator resolves an AppliedManifestWork without an owner", "operator", by.Name, "cluster", cluster, "uid", uid, "name", name, "adopt", adopt)
	return name, nil
}

// orderResolve puts an order into the subscription; ok is false if there are too many.
func (s *subscription) orderResolve(r codec.Resolve) (ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.resolves) >= maxResolves {
		return false
	}
	if !slices.Contains(s.resolves, r) {
		s.resolves = append(s.resolves, r)
	}
	s.signal()
	return true
}

// sendResolve sends an order to the agent.
func (b *Broker) sendResolve(s *subscription, out transport.Stream, r codec.Resolve) error {
	e, err := codec.NewResolve(b.syncParams(s), r)
	if err != nil {
		return internalError(err)
	}
	event, err := codec.Marshal(e)
	if err != nil {
		return internalError(err)
	}
	return out.Send(event)
}
