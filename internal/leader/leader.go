// Package leader lets one of several replicas work at a time: the one that holds
// a Lease. hub-source and agent have one each, so that neither a hub's works nor a
// cluster's objects are ever looked after by two.
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

// Election is how replicas agree on the one that works.
type Election struct {
	// Leases is where the Lease lives; nil means no election: this replica works.
	Leases          coordinationv1.LeasesGetter
	Namespace, Name string
	// Identity is unique per replica. One that comes back under the identity that
	// holds the Lease need not wait: it takes over where it ended.
	Identity string
	// Duration is how long others wait for a silent leader; RenewDeadline, how
	// long a leader tries before it stops; RetryPeriod, the time between
	// attempts. Duration > RenewDeadline > RetryPeriod.
	Duration, RenewDeadline, RetryPeriod time.Duration
	// Limit, if set, has the work do without the Lease, for the cause that is given, or with it
	// again if that is nil. A replica whose Lease has expired in the hands of another, and that
	// only admission keeps from taking it, works limited until it has the Lease: several may do
	// so at a time.
	Limit func(cause error)
	// Log may be nil.
	Log *slog.Logger
}

// giveUpWithin bounds how long the end of a leader waits for the kube-apiserver.
const giveUpWithin = 5 * time.Second

// ErrLost ends a leader: another replica may work already.
var ErrLost = errors.New("the leader lease was lost: the kube-apiserver did not answer in time, or another replica took it")

// Identity returns one for this host; unique tells replicas of one host apart.
func Identity(unique string) (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("leader election: %w", err)
	}
	return host + "_" + unique, nil
}

// CheckTimes returns why an Election with these times would not be safe. A
// leader tries at least twice before it gives up, and gives up before others take
// over.
func CheckTimes(duration, renewDeadline, retryPeriod time.Duration) error {
	if retryPeriod <= 0 || 2*retryPeriod > renewDeadline || renewDeadline >= duration {
		return fmt.Errorf("leader election: lease duration %s > renew deadline %s > 2 × retry period %s > 0 does not hold", duration, renewDeadline, retryPeriod)
	}
	return nil
}

// Readable returns nil when the Lease can be read, or does not exist yet.
func (e Election) Readable(ctx context.Context) error {
	_, err := e.Leases.Leases(e.Namespace).Get(ctx, e.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// Lead runs work while this replica is the leader: at most once. It waits for
// work to end before it gives up the lease, so that two replicas never work at
// the same time while clocks run alike. observed hears of every leader, itself
// included. A leader that lost the lease gets an error that is ErrLost.
func (e Election) Lead(ctx context.Context, observed func(leader string), work func(context.Context) error) error {
	if e.Leases == nil {
		return work(ctx)
	}
	// The elector's context outlives ctx until work has ended.
	lease, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	working, stop := context.WithCancel(ctx)
	defer stop()
	won, lock := make(chan struct{}), e.lock()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          lock,
		LeaseDuration: e.Duration, RenewDeadline: e.RenewDeadline, RetryPeriod: e.RetryPeriod,
		// It would release before it says that the lease is lost, and wait for a
		// kube-apiserver that does not answer while work goes on.
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

// limit is Limit. One that is called after won was closed ends what was called before.
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

// giveUp lets another replica lead at once, if nobody does yet.
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
