// Package leader lets one of several replicas work at a time: the one that holds a Lease. hub-source and agent
// have one each. So two replicas never handle the works of one hub, or the objects of one cluster.
package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Election elects the replica that works.
type Election struct {
	// Leases is the client of the Lease; nil means no election: this replica works.
	Leases          coordinationv1.LeasesGetter
	Namespace, Name string
	// Identity is unique per replica. A replica that restarts with the identity of the holder need not wait: it
	// continues as the leader.
	Identity string
	// Duration is how long other replicas wait for a silent leader. RenewDeadline is how long a leader tries before
	// it stops. RetryPeriod is the pause between attempts. Duration > RenewDeadline > RetryPeriod.
	Duration, RenewDeadline, RetryPeriod time.Duration
	// Limit, if set, is called with a cause when the work runs without the Lease, and with nil when it runs with
	// the Lease again. A replica works limited if admission alone keeps it from an expired Lease of another
	// replica. It does so until it has the Lease; several replicas may do so at a time.
	Limit func(cause error)
	// Log may be nil.
	Log *slog.Logger
}

// giveUpWithin limits how long a leader that ends waits for the kube-apiserver.
const giveUpWithin = 5 * time.Second

// ErrLost ends a leader: another replica may already work.
var ErrLost = errors.New("the leader lease was lost: the kube-apiserver did not answer in time, or another replica took it")

// Identity returns an identity for this host; unique distinguishes replicas on one host.
func Identity(unique string) (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("leader election: %w", err)
	}
	return host + "_" + unique, nil
}

// CheckTimes returns an error if an Election with these times is not safe. A leader tries at least twice before
// it gives up, and gives up before other replicas take over.
func CheckTimes(duration, renewDeadline, retryPeriod time.Duration) error {
	if retryPeriod <= 0 || 2*retryPeriod > renewDeadline || renewDeadline >= duration {
		return fmt.Errorf("leader election: lease duration %s > renew deadline %s > 2 × retry period %s > 0 does not hold", duration, renewDeadline, retryPeriod)
	}
	return nil
}

// Readable returns nil if the Lease can be read, or does not exist yet.
func (e Election) Readable(ctx context.Context) error {
	_, err := e.Leases.Leases(e.Namespace).Get(ctx, e.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// Lead runs work while this replica is the leader, at most once. It releases the Lease only after work has
// ended. So two replicas never work at the same time while their clocks run at the same rate. observed is
// called for each leader, this replica included. If the Lease is lost, the error is ErrLost.
func (e Election) Lead(ctx context.Context, observed func(leader string), work func(context.Context) error) error {
	if e.Leases == nil {
		return work(ctx)
	}
	// The context of the elector lives until work has ended.
	lease, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	working, stop := context.WithCancel(ctx)
	defer stop()
	won, lock := make(chan struct{}), e.lock()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          lock,
		LeaseDuration: e.Duration, RenewDeadline: e.RenewDeadline, RetryPeriod: e.RetryPeriod,
		// With true, the elector would release the Lease before it reports the loss. It would wait for a kube-apiserver
		// that does not answer while work continues.
		ReleaseOnCancel: false,
		Name:            e.Name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {
				close(won)
				e.limit(nil)
			},
			OnStoppedLeading: func() {},
			OnNewLeader:      observed,
		},
	})
	if err != nil {
		return err
	}
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		elector.Run(lease)
		stop()
	}()
	defer func() {
		end()
		<-lost
		if elector.IsLeader() {
			e.giveUp(context.WithoutCancel(ctx))
		}
	}()
	stuck := lock.stuck
	if e.Limit == nil {
		stuck = nil
	}
	select {
	case <-won:
	case <-ctx.Done():
		return ctx.Err()
	case <-lost:
		return ErrLost
	case <-stuck:
		if e.limit(lock.cause); closed(won) {
			e.limit(nil)
		}
	}
	err = work(working)
	if ctx.Err() == nil && working.Err() != nil {
		return errors.Join(ErrLost, err)
	}
	return err
}

// limit calls Limit if it is set. A call after won was closed ends the effect of the earlier call.
func (e Election) limit(cause error) {
	if e.Limit != nil {
		e.Limit(cause)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// giveUp releases the Lease if this replica still holds it, so that another replica can lead at once.
func (e Election) giveUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, giveUpWithin)
	defer cancel()
	lock := e.lock()
	held, _, err := lock.Get(ctx)
	if err == nil && held.HolderIdentity == e.Identity {
		now := metav1.Now()
		err = lock.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaderTransitions: held.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now,
		})
	}
	if err != nil && e.Log != nil {
		e.Log.WarnContext(ctx, "leader lease is not released: another replica waits until it has expired", "lease", e.Namespace+"/"+e.Name, "error", err)
	}
}
