package leader

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/hawser-io/hawser/internal/refusal"
)

// lock is the Lease for a replica behind an admission webhook or policy that may refuse every write of it.
//
// The holder continues: while a read shows it as the holder, a write that admission refuses counts as renewed.
// So a candidate takes an expired Lease of another replica only after its own dry runs have passed for a whole
// Duration.
//
// Scenario:
//
//	t1: admission refuses the writes of the holder, and the attempts of the candidate.
//	t2: admission is repaired.
//	t3: the dry runs of the candidate pass from here on, not before t2.
//	t4: a running holder renews at t2 + RetryPeriod at the latest. A holder that does not reach the server ends
//	by t2 + RenewDeadline.
//	t5: the candidate may write, at t3 + Duration at the earliest.
//
// Result: the candidate never writes before the holder has renewed or ended, because Duration > RenewDeadline >
// RetryPeriod.
//
// See docs/adr/021-admission-lockout.md.
type lock struct {
	*resourcelock.LeaseLock
	election *Election
	// holder is the holder of the Lease at the last read. allowed is since when dry runs of taking it have passed,
	// zero while they fail. refused: admission refused the last write. Only the elector's goroutine uses them.
	holder  string
	allowed time.Time
	refused bool
	// stuck is closed when admission alone keeps this replica from the Lease; cause is then the refusal.
	stuck chan struct{}
	cause error
}

func (e Election) lock() *lock {
	return &lock{
		LeaseLock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name},
			Client:     e.Leases,
			LockConfig: resourcelock.ResourceLockConfig{Identity: e.Identity},
		},
		election: &e, stuck: make(chan struct{}),
	}
}

var errTooSoon = errors.New("admission rejected attempts to take the lease until a short time ago: its holder gets the time to renew it")

// Get implements resourcelock.Interface.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.LeaseLock.Get(ctx)
	if err != nil {
		return record, raw, err
	}
	if l.holder = record.HolderIdentity; l.others() {
		l.note(l.dryRun(ctx))
	}
	return record, raw, nil
}

// others reports whether another replica holds the Lease, expired or not.
func (l *lock) others() bool { return l.holder != "" && l.holder != l.Identity() }

// dryRun tries to take the Lease in a dry run.
func (l *lock) dryRun(ctx context.Context) error {
	leases := l.election.Leases.Leases(l.election.Namespace)
	lease, err := leases.Get(ctx, l.election.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	identity := l.Identity()
	lease.Spec.HolderIdentity = &identity
	_, err = leases.Update(ctx, lease, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// note records the result of a write, or of a dry run of one. An error that is not from admission changes
// nothing. Some webhooks do not support a dry run, and return BadRequest.
func (l *lock) note(err error) {
	_, refused := refusal.Of(err)
	switch {
	case refused:
		if !l.refused && l.election.Log != nil {
			l.election.Log.Warn("admission rejects what is written to the leader lease", "lease", l.Describe(), "error", err)
		}
		if l.allowed, l.refused = (time.Time{}), true; l.cause == nil {
			l.cause = err
		}
	case err == nil || apierrors.IsBadRequest(err):
		if l.refused = false; l.allowed.IsZero() {
			l.allowed = time.Now()
		}
	}
}

// Create implements resourcelock.Interface.
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := l.LeaseLock.Create(ctx, record)
	l.note(err)
	l.reportStuck()
	return err
}

// Update implements resourcelock.Interface. The elector calls it for the Lease of another replica when that
// Lease has expired.
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if l.others() && (l.allowed.IsZero() || time.Since(l.allowed) < l.election.Duration) {
		l.reportStuck()
		return errTooSoon
	}
	err := l.LeaseLock.Update(ctx, record)
	if l.note(err); err == nil {
		l.holder = l.Identity()
	}
	if !l.refused || err == nil {
		return err
	}
	held, _, readErr := l.LeaseLock.Get(ctx)
	if readErr != nil {
		return err
	}
	if l.holder = held.HolderIdentity; l.holder == l.Identity() {
		return nil // no other replica can write the Lease either
	}
	l.reportStuck()
	return err
}

// reportStuck closes stuck, once, if admission refuses the writes of this replica.
func (l *lock) reportStuck() {
	select {
	case <-l.stuck:
	default:
		if l.refused {
			close(l.stuck)
		}
	}
}
