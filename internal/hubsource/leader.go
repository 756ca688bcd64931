package hubsource

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Election is how replicas agree on the one that works. The others keep their
// caches warm.
type Election struct {
	// Leases is where the Lease lives; nil means no election: this replica works.
	Leases          coordinationv1.LeasesGetter
	Namespace, Name string
	// Identity is unique per replica.
	Identity string
	// Duration is how long others wait for a silent leader; RenewDeadline, how
	// long a leader tries before it stops; RetryPeriod, the time between
	// attempts. Duration > RenewDeadline > RetryPeriod.
	Duration, RenewDeadline, RetryPeriod time.Duration
}

// readable returns nil when the Lease can be read, or does not exist yet.
func (e Election) readable(ctx context.Context) error {
	_, err := e.Leases.Leases(e.Namespace).Get(ctx, e.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// errLeaseLost ends a leader: another replica may work already.
var errLeaseLost = errors.New("the leader lease was lost: the hub did not answer in time, or another replica took it")

// lead runs work while this replica is the leader: at most once. It waits for
// work to end before it gives up the lease, so that two replicas never work at
// the same time while clocks run alike. observed hears of every leader, itself
// included.
func (e Election) lead(ctx context.Context, observed func(leader string), work func(context.Context) error) error {
	if e.Leases == nil {
		return work(ctx)
	}
	// The elector's context outlives ctx until work has ended.
	lease, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	working, stop := context.WithCancel(ctx)
	defer stop()
	won := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name},
			Client:     e.Leases,
			LockConfig: resourcelock.ResourceLockConfig{Identity: e.Identity},
		},
		LeaseDuration: e.Duration, RenewDeadline: e.RenewDeadline, RetryPeriod: e.RetryPeriod,
		ReleaseOnCancel: true,
		Name:            e.Name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(won) },
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
	defer func() { release(); <-lost }()
	select {
	case <-won:
	case <-ctx.Done():
		return ctx.Err()
	case <-lost:
		return errLeaseLost
	}
	err = work(working)
	if ctx.Err() == nil && working.Err() != nil {
		return errors.Join(errLeaseLost, err)
	}
	return err
}
