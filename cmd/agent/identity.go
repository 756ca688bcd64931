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

// process is the running agent. It first finds out under which hub identity it
// acts, and then is one of the agents that agree by a Lease on who works.
type process struct {
	cfg       *config
	agent     agent.Config // without identity
	broker    *broker
	rest      *rest.Config
	answering func() error // of the managed cluster
	namespace string
	journal   *journal.Journal
	registry  prometheus.Registerer
	hubs      hubidentity.Registry

	// unknown is why the identity is not known yet.
	unknown atomic.Pointer[error]
	running atomic.Pointer[running]
}

// running is what there is once the identity is known.
type running struct {
	*agent.Agent
	lease *lease
	// policy is nil without a policy file.
	policy *policyFile
	// registration is nil unless the agent registers itself.
	registration *registration.Registration
	// verified says that the address of the broker is that of the identity; else only
	// its store can show it, and a standby does not see that.
	verified bool
}

// run works until ctx ends.
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
	c.Guard = &workpolicy.Guard{Hub: identity, Own: workpolicy.Own{Namespace: p.namespace, Account: accountOf(p.rest)}}
	c.Admit = func(ctx context.Context, a transport.Accepted) error { return p.admit(ctx, identity, a) }
	l, err := p.cfg.newLease(p.rest, p.namespace, identity, p.journal, c.Log)
	if err != nil {
		return err
	}
	if l.memory != nil { // a nil *Memory in the interface would be one that is there
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
	c.Log.InfoContext(ctx, "the hub has an identity", "hub_identity", identity)
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

// work is what the active agent does.
func (r *running) work(ctx context.Context) error {
	tasks := []taskgroup.Task{{Name: "agent", Run: r.Agent.Run}}
	if r.policy != nil {
		r.policy.look(ctx) // an agent may have stood by for long
		tasks = append(tasks, taskgroup.Task{Name: "policy file", Run: r.policy.watch})
	}
	if r.registration != nil {
		tasks = append(tasks, taskgroup.Task{Name: "registration", Run: r.registration.Run})
	}
	return taskgroup.Group(ctx, tasks...)
}

// identifyAgain is the longest time until it is looked again which identity the
// agent has.
const identifyAgain = 10 * time.Second

// identify returns the identity: the one that was given, else the one that the
// cluster says. It waits while that is not certain.
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
			p.agent.Log.ErrorContext(ctx, "it is not known which hub this is, trying again", "error", err)
		}
		if !taskgroup.Sleep(ctx, delay) {
			return "", false, ctx.Err()
		}
	}
}

// admit says whether the identity may be used through the broker, and has it
// written down.
func (p *process) admit(ctx context.Context, identity string, a transport.Accepted) error {
	trusted, err := p.broker.trusted()
	if err != nil {
		return err
	}
	unclaimed, err := p.hubs.Admit(ctx, identity, hubidentity.BrokerRef{Cluster: p.cfg.clusterName, Broker: p.broker.current().addr, Roots: a.Roots, StoreID: a.StoreID}, trusted)
	for _, hash := range slices.Sorted(maps.Keys(unclaimed)) {
		p.agent.Log.WarnContext(ctx, "this hub is new on the cluster, and another one has AppliedManifestWorks whose identity nobody has claimed: if it is the same hub under a former identity, hand its objects over with hawser hub-identity transfer",
			"hub_identity", identity, "other_hub_hash", hash, "applied_manifest_works", unclaimed[hash])
	}
	return err
}

// identityReady returns why the agent may not act as its hub.
func (p *process) identityReady() error {
	r := p.running.Load()
	switch {
	case r == nil:
		if err := p.unknown.Load(); err != nil {
			return *err
		}
		return errors.New("the cluster has not said yet which hub this is")
	case !r.verified && r.lease.standby():
		return fmt.Errorf("the hub identity of this cluster was not used with broker %s before; only the active agent can find out whether it is the same: if it is another hub, set --hub-identity", p.broker.current().addr)
	}
	return r.IdentityReady()
}

// refused is a metric about that, until the agent has one of its own.
func (p *process) refused() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: agent.IdentityRefusedMetric, Help: agent.IdentityRefusedHelp}, func() float64 {
		if p.unknown.Load() != nil {
			return 1
		}
		return 0
	})
}

// policyReady returns why the policy file cannot be used as it is.
func (p *process) policyReady() error {
	if r := p.running.Load(); r != nil {
		return r.policy.ready()
	}
	return nil
}

// late names the works that take long; the agent is ready all the same.
func (p *process) late() error {
	if r := p.running.Load(); r != nil {
		if late := r.Late(); late != "" {
			return telemetry.Notice(errors.New("these take long, others do not wait for them: " + late))
		}
	}
	return nil
}

var errNotYet = errors.New("the agent has not begun")

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

// unlessStandby makes a check of the active agent one that a standby passes.
func (p *process) unlessStandby(check func() error) func() error {
	return func() error {
		if r := p.running.Load(); r != nil {
			return r.lease.unlessStandby(check)()
		}
		return check()
	}
}
