package registration

import (
	"cmp"
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/internal/sessionfence"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/codec"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

const (
	// leaseWriters is the number of concurrent writes of Leases. leaseTimeout is how long the hub may take for one.
	leaseWriters = 16
	leaseTimeout = 10 * time.Second
	// idle is the longest pause between two checks for a Lease to write.
	idle = time.Minute
)

// renewed records which agents renewed their Leases. Only an accepted cluster with a Lease on the hub has one
// to renew; controllers of the hub create the Lease.
func (s *Server) renewed(l *hawserv1.LeaseRenewals) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range l.GetRenewals() {
		c, lease := s.cluster(r.GetCluster()), s.of(codec.Leases).get(r.GetCluster(), ocm.LeaseName)
		if !c.accepted() || lease == nil {
			continue
		}
		if r.GetIssued() != nil {
			s.issues.shown[c.Name] = sessionfence.Latest(s.issues.shown[c.Name], r.GetIssued().AsTime())
			s.judgeRotation(c)
		}
		age := max(0, r.GetAge().AsDuration())
		s.renewals.renew(now, c.Name, now.Add(-age), lease.renewed.Time, time.Duration(c.period)*time.Second)
	}
	s.leasesReady.Ring()
}

// writeLeases writes the Leases that are due, until ctx ends.
func (s *Server) writeLeases(ctx context.Context) error {
	var writers errgroup.Group
	writers.SetLimit(leaseWriters)
	for ctx.Err() == nil {
		s.mu.Lock()
		cluster, renewed, wait, due := s.renewals.next(time.Now())
		s.mu.Unlock()
		if !due {
			taskgroup.WaitFor(ctx, s.leasesReady, min(cmp.Or(wait, idle), idle))
			continue
		}
		writers.Go(func() error {
			s.writeLease(ctx, cluster, renewed)
			return nil
		})
	}
	return writers.Wait()
}

// writeLease writes the renewal time of a Lease by the clock of this process, not of the agent. The time on the
// hub is kept if it is later, unless it is ahead of now: then a wrong clock wrote it.
func (s *Server) writeLease(ctx context.Context, cluster string, renewed time.Time) {
	c, lease := s.cluster(cluster), s.of(codec.Leases).get(cluster, ocm.LeaseName)
	if c == nil || lease == nil || !lease.renewed.After(time.Now()) && !renewed.After(lease.renewed.Time) {
		return
	}
	// Scenario:
	//   t1: the Lease is due.
	//   t2: all writers wait for the hub.
	//   t3: one is free.
	// Result: the renewal may be too old by now, or become so while the hub answers.
	left := ocm.MissedPeriods*time.Duration(c.period)*time.Second - time.Since(renewed)
	if left <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, min(leaseTimeout, left))
	defer cancel()
	_, err := s.cfg.Hub.do(ctx, call{
		verb: mergePatch, resource: leases, namespace: cluster, name: ocm.LeaseName,
		object: map[string]any{
			"metadata": map[string]any{"uid": string(lease.UID)}, // the write fails for another object of this name
			"spec":     map[string]any{"renewTime": renewed.UTC().Format(metav1.RFC3339Micro)},
		},
	})
	s.metrics.leases.WithLabelValues(resultOf(err)).Inc()
	if err == nil || ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		return
	}
	s.cfg.Log.DebugContext(ctx, "the hub did not accept the Lease of a cluster", "cluster", cluster, "err", err)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) {
		return // the Lease is deleted, or another one has its name
	}
	s.mu.Lock()
	s.renewals.failed(time.Now(), cluster, lease.renewed.Time)
	s.mu.Unlock()
	s.leasesReady.Ring()
}
