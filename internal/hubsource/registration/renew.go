package registration

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
		c, lease := s.cluster(r.GetCluster()), s.of(codec.Leases).get(r.GetCluster(), leaseName)
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

// toWrite is a Lease to write.
type toWrite struct {
	cluster string
	renewed time.Time
}

// writeLeases writes the Leases that are due, until ctx ends.
func (s *Server) writeLeases(ctx context.Context) error {
	due := make(chan toWrite)
	tasks := []taskgroup.Task{{Name: "due", Run: func(ctx context.Context) error {
		for {
			s.mu.Lock()
			cluster, renewed, wait, ok := s.renewals.next(time.Now())
			s.mu.Unlock()
			if ok {
				select {
				case due <- toWrite{cluster, renewed}:
				case <-ctx.Done():
					return nil
				}
				continue
			}
			if !s.await(ctx, wait) {
				return nil
			}
		}
	}}}
	for range leaseWriters {
		tasks = append(tasks, taskgroup.Task{Name: "write", Run: func(ctx context.Context) error {
			for {
				select {
				case <-ctx.Done():
					return nil
				case w := <-due:
					s.writeLease(ctx, w)
				}
			}
		}})
	}
	return taskgroup.Group(ctx, tasks...)
}

// await waits for a duration, or until a Lease was renewed. It returns false if ctx has ended.
func (s *Server) await(ctx context.Context, wait time.Duration) bool {
	if wait <= 0 {
		wait = idle
	}
	select {
	case <-ctx.Done():
		return false
	case <-s.leasesReady:
	case <-time.After(min(wait, idle)):
	}
	return true
}

// writeLease writes the renewal time of a Lease by the clock of this process, not of the agent. The time on the
// hub is kept if it is later, unless it is ahead of now: then a wrong clock wrote it.
func (s *Server) writeLease(ctx context.Context, w toWrite) {
	c, lease := s.cluster(w.cluster), s.of(codec.Leases).get(w.cluster, leaseName)
	if c == nil || lease == nil || !lease.renewed.After(time.Now()) && !w.renewed.After(lease.renewed.Time) {
		return
	}
	// Scenario:
	//   t1: the Lease is due.
	//   t2: all writers wait for the hub.
	//   t3: one is free.
	// Result: the renewal may be too old by now, or become so while the hub answers.
	left := missedPeriods*time.Duration(c.period)*time.Second - time.Since(w.renewed)
	if left <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, min(leaseTimeout, left))
	defer cancel()
	_, err := s.cfg.Hub.do(ctx, call{
		verb: mergePatch, resource: leases, namespace: w.cluster, name: leaseName,
		object: map[string]any{
			"metadata": map[string]any{"uid": string(lease.UID)}, // the write fails for another object of this name
			"spec":     map[string]any{"renewTime": w.renewed.UTC().Format(metav1.RFC3339Micro)},
		},
	})
	s.metrics.leases.WithLabelValues(resultOf(err)).Inc()
	if err == nil || ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		return
	}
	s.cfg.Log.DebugContext(ctx, "the hub did not accept the Lease of a cluster", "cluster", w.cluster, "err", err)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) {
		return // the Lease is deleted, or another one has its name
	}
	s.mu.Lock()
	s.renewals.failed(time.Now(), w.cluster, lease.renewed.Time)
	s.mu.Unlock()
	s.leasesReady.Ring()
}
