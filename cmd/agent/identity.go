package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/pkg/agent"
	"github.com/hawser-io/hawser/pkg/agent/hubidentity"
	"github.com/hawser-io/hawser/pkg/agent/journal"
	"github.com/hawser-io/hawser/pkg/agent/registration"
	"github.com/hawser-io/hawser/pkg/agent/workpolicy"
	"github.com/hawser-io/hawser/pkg/transport"
)

// process is the running agent. It first determines its hub identity. Then it competes with other agents for
// the Lease; the holder is the active agent.
type process struct {
	cfg       *config
	agent     agent.Config // hub identity not yet set
	broker    *broker
	rest      *rest.Config
	answering func() error // checks whether the managed cluster answers
	namespace string
	journal   *journal.Journal
	registry  prometheus.Registerer
	hubs      hubidentity.Registry

	// unknown is why the identity is not known yet.
	unknown atomic.Pointer[error]
	running atomic.Pointer[running]
}

// running is the state after the identity is known.
type running struct {
	*agent.Agent
	lease *lease
	// policy is nil without a policy file.
	policy *policyFile
	// registration is nil unless the agent registers itself.
	registration *registration.Registration
	// verified: the broker's address belongs to the identity. Otherwise only the broker's store can prove it, and a
	// standby agent does not see the store.
	verified bool
}

// run runs the agent until ctx ends.
func (p *process) run(ctx context.Context) error {
	c, waiting := p.agent, p.refused()
	if err := p.registry.Register(waiting); err != nil {
		return err
	}
	identity, proven, err := p.identify(ctx)
	if err != nil {
		return err
	}
	p.registry.Unregister(waiting)
	c.HubIdentity = identity
	c.Guard = &workpolicy.Guard{Hub: identity, Agent: workpolicy.Agent{Namespace: p.namespace, Account: accountOf(p.rest)}}
	c.Admit = func(ctx context.Context, a transport.Accepted) error { return p.admit(ctx, identity, a) }
	l, err := p.cfg.newLease(p.rest, p.namespace, identity, p.journal, c.Log)
	if err != nil {
		return err
	}
	if l.memory != nil { // a nil *Memory in the interface would compare unequal to nil
		c.Lease = l.memory
	}
	c.OwnWrites = p.cfg.ownWrites(l, p.namespace)
	a, err := agent.New(c)
	if err != nil {
		return err
	}
	l.lost = a.EndHistory
	p.broker.agent.Store(a)
	l.election.Limit = a.Limit
	policy, err := p.cfg.openPolicy(identity, a, c.Log)
	if err != nil {
		return err
	}
	c.Log.InfoContext(ctx, "the hub identity is known", "hub_identity", identity)
	r := &running{Agent: a, lease: l, policy: policy, verified: proven}
	if p.cfg.joins() {
		if r.registration, err = p.newRegistration(identity); err != nil {
			return err
		}
	}
	p.running.Store(r)
	p.unknown.Store(nil)
	return l.lead(ctx, r.work)
}

// work runs the active agent.
func (r *running) work(ctx context.Context) error {
	tasks := []taskgroup.Task{{Name: "agent", Run: r.Agent.Run}}
	if r.policy != nil {
		r.policy.look(ctx) // the agent may have been on standby for a long time
		tasks = append(tasks, taskgroup.Task{Name: "policy file", Run: r.policy.watch})
	}
	if r.registration != nil {
		tasks = append(tasks, taskgroup.Task{Name: "registration", Run: r.registration.Run})
	}
	return taskgroup.Group(ctx, tasks...)
}

// identifyAgain is the maximum interval between attempts to determine the identity.
const identifyAgain = 10 * time.Second

// identify returns the configured identity, or else the one that the cluster has recorded. It waits until that
// is certain.
func (p *process) identify(ctx context.Context) (identity string, verified bool, err error) {
	if p.cfg.hubIdentity != "" {
		return p.cfg.hubIdentity, true, nil
	}
	reported := ""
	for delay := time.Second; ; delay = min(2*delay, identifyAgain) {
		identity, verified, err = p.hubs.Identify(ctx, p.cfg.clusterName, p.broker.current().addr)
		if err == nil || ctx.Err() != nil {
			return identity, verified, errors.Join(err, ctx.Err())
		}
		p.unknown.Store(&err)
		if err.Error() != reported {
			reported = err.Error()
			p.agent.Log.ErrorContext(ctx, "the hub identity is not known yet; retrying", "error", err)
		}
		if !taskgroup.Sleep(ctx, delay) {
			return "", false, ctx.Err()
		}
	}
}

// admit returns an error if the identity may not be used through the broker, and records it on the cluster.
func (p *process) admit(ctx context.Context, identity string, a transport.Accepted) error {
	trusted, err := p.broker.trusted()
	if err != nil {
		return err
	}
	unclaimed, err := p.hubs.Admit(ctx, identity, hubidentity.BrokerRef{Cluster: p.cfg.clusterName, Broker: p.broker.current().addr, Roots: a.Roots, StoreID: a.StoreID}, trusted)
	for _, hash := range slices.Sorted(maps.Keys(unclaimed)) {
		p.agent.Log.WarnContext(ctx, "this hub is new on the cluster, and another hub has AppliedManifestWorks with an identity that no agent uses. If it is the same hub under a former identity, transfer its objects with hawser hub-identity transfer",
			"hub_identity", identity, "other_hub_hash", hash, "applied_manifest_works", unclaimed[hash])
	}
	return err
}

// identityReady returns why the agent may not act for its hub.
func (p *process) identityReady() error {
	r := p.running.Load()
	switch {
	case r == nil:
		if err := p.unknown.Load(); err != nil {
			return *err
		}
		return errors.New("the hub identity of this cluster is not known yet")
	case !r.verified && r.lease.standby():
		return fmt.Errorf("the hub identity of this cluster was not used with broker %s before, and only the active agent can verify it. If it is another hub, set --hub-identity", p.broker.current().addr)
	}
	return r.IdentityReady()
}

// refused is the metric of a refused identity, until the agent has registered its own.
func (p *process) refused() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: agent.IdentityRefusedMetric, Help: agent.IdentityRefusedHelp}, func() float64 {
		if p.unknown.Load() != nil {
			return 1
		}
		return 0
	})
}

// policyReady returns why the current policy file cannot be used.
func (p *process) policyReady() error {
	if r := p.running.Load(); r != nil {
		return r.policy.ready()
	}
	return nil
}

// late returns a notice with the slow works; the agent is ready anyway.
func (p *process) late() error {
	if r := p.running.Load(); r != nil {
		if late := r.SlowWorks(); late != "" {
			return telemetry.Notice(errors.New("these reconciles are slow; others do not wait for them: " + late))
		}
	}
	return nil
}

var errNotYet = errors.New("the agent has not started yet")

func (p *process) leaseReady() error {
	if r := p.running.Load(); r != nil {
		return r.lease.ready()
	}
	return errNotYet
}

func (p *process) clusterReady() error {
	if err := p.answering(); err != nil {
		return err
	}
	if r := p.running.Load(); r != nil {
		return r.ClusterReady()
	}
	return errNotYet
}

func (p *process) brokerReady() error {
	if r := p.running.Load(); r != nil {
		return r.BrokerReady()
	}
	return errNotYet
}

// unlessStandby makes a check of the active agent pass on a standby.
func (p *process) unlessStandby(check func() error) func() error {
	return func() error {
		if r := p.running.Load(); r != nil {
			return r.lease.unlessStandby(check)()
		}
		return check()
	}
}
