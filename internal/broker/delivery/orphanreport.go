package delivery

import (
	"context"
	"slices"
	"time"

	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/bytebudget"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// maxOrders is the maximum number of operator decisions that wait for an agent.
const maxOrders = 1000

// orphanReport is an agent's report of orphan AppliedManifestWorks, with the decisions of operators about them.
// It ends with the subscription, whose lock guards it.
type orphanReport struct {
	budget   *bytebudget.Budget
	client   identity.Identity
	bytes    int
	reported codec.OrphanReport
	orders   []codec.ResolveOrphan // oldest first
}

// replace stores a new report. If the memory budget is exceeded, it only keeps the number of works.
func (a *orphanReport) replace(u codec.OrphanReport) {
	a.budget.Free(a.client, a.bytes)
	a.bytes = 0
	for _, r := range u.Records {
		a.bytes += 128 + len(r.UID) + len(r.Name) + len(r.Outcome)
	}
	if !a.budget.Reserve(a.client, a.bytes) {
		u = codec.OrphanReport{More: u.More + uint64(len(u.Records))}
		a.bytes = 0
	}
	a.reported = u
}

// free drops the report and the decisions, and releases their memory budget.
func (a *orphanReport) free() {
	a.replace(codec.OrphanReport{})
	a.orders = nil
}

// order queues a decision for the agent. It returns false if there are too many.
func (a *orphanReport) order(r codec.ResolveOrphan) bool {
	if len(a.orders) >= maxOrders {
		return false
	}
	if !slices.Contains(a.orders, r) {
		a.orders = append(a.orders, r)
	}
	return true
}

// OrphanReport stores an agent's report of orphan AppliedManifestWorks.
func (f *Feed) OrphanReport(_ context.Context, e *request.Event) error {
	s, u, err := delivered(f.registry, e, codec.ParseOrphanReport)
	if err != nil {
		return err
	}
	if s.part != codec.Spec {
		return request.Invalid(codec.HeaderSubscriptionID, "the subscription is not one of an agent", "name the subscription to the works of the agent's cluster")
	}
	s.locked(func() {
		if s.phase != closed { // otherwise the subscription has ended
			s.orphans.replace(u)
		}
	})
	f.peers.Reported(s.scope)
	return nil
}

// ResolveOrphan queues an operator's decision for the agents of a cluster that reported an AppliedManifestWork.
func (f *Feed) ResolveOrphan(cluster, uid string, adopt bool) (name string, err error) {
	agents := f.registry.agents(cluster)
	if elsewhere := f.peers.ConnectedElsewhere(cluster); len(agents) == 0 && len(elsewhere) > 0 {
		return "", &transport.Error{
			Code: transport.CodeUnavailable, Next: transport.NextUseAnotherServer,
			Message: "the agent of cluster " + cluster + " is connected to another replica of the broker", Hint: "repeat the command until it reaches that replica",
		}
	}
	if len(agents) == 0 {
		return "", request.Unavailable("", "no agent of cluster "+cluster+" is connected", "hawser get clusters shows the connected agents; try again when one is connected")
	}
	for _, s := range agents {
		named, err := s.resolve(cluster, uid, adopt)
		if err != nil {
			return "", err
		}
		if named != "" {
			name = named
		}
	}
	if name == "" {
		return "", request.NotFound("no agent of cluster "+cluster+" has reported an unowned AppliedManifestWork with the uid "+uid, "hawser get discrepancies --cluster "+cluster+" shows the reported ones")
	}
	return name, nil
}

// resolve queues a decision if the agent reported the AppliedManifestWork, and returns its name; otherwise it
// returns "".
func (s *subscription) resolve(cluster, uid string, adopt bool) (name string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.orphans.reported.Records, func(r codec.OrphanRecord) bool { return r.UID == uid })
	if i < 0 {
		return "", nil
	}
	r := s.orphans.reported.Records[i]
	if r.Shared {
		return "", transport.Refused(transport.CodeConflict, "", r.Name+" belongs to another hub", "the owner of the cluster can transfer it with: hawser hub-identity transfer")
	}
	if !s.orphans.order(codec.ResolveOrphan{UID: uid, Name: r.Name, Adopt: adopt}) {
		return "", request.Overloaded("too many decisions wait for the agent of cluster "+cluster, time.Minute)
	}
	s.wake.Ring()
	return r.Name, nil
}
