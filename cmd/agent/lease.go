package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	coordinationapi "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/hawser-io/hawser/internal/history"
	"github.com/hawser-io/hawser/internal/leader"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/hubidentity"
	"github.com/hawser-io/hawser/pkg/agent/journal"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// podNamespace is the file with the namespace of a pod.
const podNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// ownNamespace returns the agent's own namespace.
func (c *config) ownNamespace(file string) (string, error) {
	if c.namespace != "" {
		return c.namespace, nil
	}
	b, err := os.ReadFile(file)
	if name := string(bytes.TrimSpace(b)); err == nil && name != "" {
		return name, nil
	}
	return "", errors.New("namespace is empty: name the namespace of the managed cluster for the Lease of this agent and for the record of the hub identities, as hawser")
}

// lease makes at most one agent of a cluster and hub active at a time.
type lease struct {
	election leader.Election
	// memory holds the Lease as it was last written; lost is called if the cluster has another one. Both are nil
	// without leader election.
	memory *leader.Memory
	lost   func(reason string)
	log    *slog.Logger
	holder atomic.Pointer[string]
}

// newLease returns the lease on the managed cluster of r. With a nil j, a restart waits until the Lease of a
// killed process has expired.
func (c *config) newLease(r *rest.Config, namespace, hubIdentity string, j *journal.Journal, log *slog.Logger) (*lease, error) {
	if c.noLeaderElection {
		return &lease{log: log}, nil
	}
	// Renewals must not wait behind other requests.
	leases, err := coordinationv1.NewForConfig(gentle(r))
	if err != nil {
		return nil, fmt.Errorf("reach the managed cluster: %w", err)
	}
	unique := uuid.NewString()
	if j != nil {
		unique = j.Instance()
	}
	identity, err := leader.Identity(unique)
	if err != nil {
		return nil, err
	}
	l, name := &lease{log: log}, hubidentity.LeaseName(appliedwork.HubHash(hubIdentity), c.agentID)
	l.memory = leader.Remember(leases, namespace, name, func(history.Evidence) { l.lost("the Lease " + name + " differs from the state that was written last") })
	l.election = leader.Election{
		Leases: l.memory, Namespace: namespace, Name: name, Identity: identity,
		Duration: c.leaseDuration, RenewDeadline: c.renewDeadline, RetryPeriod: c.retryPeriod, Log: log,
	}
	return l, nil
}

// ownWrites are the agent's writes in its namespace on the managed cluster.
func (c *config) ownWrites(l *lease, namespace string) []kubeclient.Write {
	update := func(gv schema.GroupVersion, resource, name string) kubeclient.Write {
		return kubeclient.Write{Verb: kubeclient.Update, Ref: kubeclient.Ref{GroupVersionResource: gv.WithResource(resource), Namespace: namespace, Name: name}}
	}
	writes := []kubeclient.Write{update(corev1.SchemeGroupVersion, "configmaps", hubidentity.ClaimsName)}
	if l.election.Leases != nil {
		writes = append(writes, update(coordinationapi.SchemeGroupVersion, "leases", l.election.Name))
	}
	if c.joins() { // in hosted mode the Secret is on the hosting cluster, so its absence here is no missing right
		writes = append(writes, update(corev1.SchemeGroupVersion, "secrets", c.hubSecret))
	}
	return writes
}

// patience is how long a cluster may forbid a request that it will allow later: after its start it loads its
// roles with a delay.
const patience = 20 * time.Second

// preflight detects a missing permission, which would keep the agent on standby for ever. It waits for a
// cluster that does not answer.
func (l *lease) preflight(ctx context.Context) error {
	began := time.Now()
	for delay := time.Second; ; delay = min(2*delay, 15*time.Second) {
		err := l.election.Readable(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case (apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)) && time.Since(began) >= patience:
			return fmt.Errorf("the cluster does not let this service account read the Lease %s/%s (deploy/agent/rbac.yaml grants it): %w", l.election.Namespace, l.election.Name, err)
		}
		l.log.WarnContext(ctx, "the Lease cannot be read; retrying", "error", err, "delay", delay)
		if !taskgroup.Sleep(ctx, delay) {
			return ctx.Err()
		}
	}
}

// lead runs work while this agent holds the Lease, at most once. It returns an error when the Lease is lost,
// because another agent may be active already.
func (l *lease) lead(ctx context.Context, work func(context.Context) error) error {
	if l.election.Leases != nil {
		if err := l.preflight(ctx); err != nil {
			return err
		}
	}
	return l.election.Lead(ctx, func(holder string) {
		l.holder.Store(&holder)
		l.log.InfoContext(ctx, "active agent observed", "holder", holder, "self", holder == l.election.Identity)
	}, work)
}

// ready returns nil once the active agent is known.
func (l *lease) ready() error {
	if l.election.Leases != nil && l.holder.Load() == nil {
		return fmt.Errorf("no agent is active: check that the Lease %s/%s can be read and written", l.election.Namespace, l.election.Name)
	}
	return nil
}

// standby reports whether another agent is active.
func (l *lease) standby() bool {
	holder := l.holder.Load()
	return holder != nil && *holder != l.election.Identity
}

// unlessStandby makes a check of the active agent pass on a standby.
func (l *lease) unlessStandby(check func() error) func() error {
	return func() error {
		if l.standby() {
			return nil
		}
		return check()
	}
}
