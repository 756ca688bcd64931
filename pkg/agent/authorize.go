package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/executor"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/workpolicy"
)

// permitTime is the lifetime of a permission whose end no watch shows. It is checked again after a random time
// between 1 and 1.5 times permitTime.
const permitTime = 4 * time.Minute

// missingTTL is the retry interval of a write for which the agent lacks a right, while roles are watched. The
// right may come from another source than a role.
const missingTTL = 10 * time.Minute

// permit records whether an executor may apply an object.
type permit struct {
	account executor.Account
	owned   bool
	applied bool // see executor.Object
	denied  bool
	// hidden: the executor may not read the object either.
	hidden bool
	// changes is the number of role changes before the check. early: the server may not have applied the last
	// change yet.
	changes uint64
	early   bool
	// failed: the latest check got no answer.
	failed bool
	// until is when the permit expires; zero: it is valid while roles are watched and do not change. A permit
	// checked soon after a change is valid for at most one minute.
	until time.Time
}

// authority is the account that a reconciliation applies with.
type authority struct {
	account executor.Account
	err     error // why the account is unknown
	// before has the permits of earlier reconciliations. until is the expiry of permits that this reconciliation
	// obtains.
	before map[kubeclient.Ref]permit
	until  time.Time
	// failed has the errors of repeated checks of objects that the executor was allowed to apply so far.
	failed error
}

// rights are the permissions of one reconciliation, of the executor of its work or of the agent.
type rights struct {
	config *CoreConfig
	roles  *roleState
	*keyState
	reconcileInput
	// authority is the account that applies manifests; nil: the agent's own.
	authority *authority
}

// actFor starts to apply a work as its executor, if it has one.
func (r *rights) actFor(e *workv1.ManifestWorkExecutor) {
	before := r.permits
	if e == nil {
		r.permits = nil
		return
	}
	r.needRoles(true)
	r.permits = map[kubeclient.Ref]permit{}
	r.authority = &authority{before: before, until: r.now.Add(permitTime + time.Duration(r.config.Random()*float64(permitTime/2)))}
	r.authority.account, r.authority.err = executor.Of(*e)
}

// ofNow reports whether a permit was checked with the current roles.
func (r *rights) ofNow(p permit) bool {
	changes, _ := r.roles.present(r.now)
	return p.changes == changes && !p.early
}

// newPermit returns the permit of a check that is about to start.
func (r *rights) newPermit(m apply.Manifest) *permit {
	changes, early := r.roles.present(r.config.Now())
	return &permit{account: r.authority.account, owned: m.Owned, applied: appliesOnServer(m), until: r.authority.until, changes: changes, early: early}
}

// permitted returns why the executor may not apply a manifest. nil: it may, or there is no executor. same: the
// object is as wanted and no write follows. Then an earlier permission is valid even if the new check gets no
// answer.
func (r *rights) permitted(ctx context.Context, m apply.Manifest, same bool) error {
	a := r.authority
	if a == nil {
		return nil
	}
	if a.err != nil {
		return a.err
	}
	last := a.last(m.Ref)
	if last != nil && r.suffices(*last, m, same) {
		last.failed = false // there was no check this time
		r.permits[m.Ref] = *last
		return nil
	}
	next, err := r.query(ctx, m)
	switch {
	case next != nil:
		if next.denied && !a.before[m.Ref].denied {
			r.log.InfoContext(ctx, deniedText, "object", m.Ref.String(), "executor", a.account.User(), "reason", err)
		}
		r.permits[m.Ref] = *next
		return err
	case same && last != nil && !missesRight(err):
		last.failed = true
		r.permits[m.Ref] = *last
		a.failed = errors.Join(a.failed, fmt.Errorf("%s: %w", m.Ref, err))
		return nil
	}
	return err
}

// last returns the latest permission of the account for an object, expired or not; nil if there is none.
func (a *authority) last(ref kubeclient.Ref) *permit {
	if p, has := a.before[ref]; has && p.account == a.account && !p.denied {
		return &p
	}
	return nil
}

// suffices reports whether no check is needed. If nothing is written, a valid permission also suffices while a
// scheduled check of changed roles is pending. Before a write, it suffices only if KeepPermits is set.
func (r *rights) suffices(p permit, m apply.Manifest, same bool) bool {
	switch {
	case !r.holds(p, m):
		return false
	case same:
		return r.ofNow(p) || r.roles.lookDue(r.config.Now()) > 0
	}
	return r.config.KeepPermits && r.ofNow(p)
}

// query checks the permission at the cluster. It returns the permit, and the reason if it is a denial. If there
// is no answer it returns nil and the error.
func (r *rights) query(ctx context.Context, m apply.Manifest) (*permit, error) {
	p := r.newPermit(m)
	watched := r.config.Roles != nil && r.config.Roles.Watched()
	byRoles, err := executor.Checker{Cluster: r.config.Client}.MayApply(ctx, p.account, executor.Object{Ref: m.Ref, Owned: p.owned, Applied: p.applied})
	var denied *executor.DeniedError
	switch {
	case err == nil:
		r.config.Metrics.checked(checkAllowed)
		if byRoles && watched {
			p.until = r.roles.inForceAt(r.config.Now())
		}
	case errors.As(err, &denied):
		r.config.Metrics.checked(checkDenied)
		p.denied, p.hidden = true, slices.Contains(denied.Verbs, "get")
	default:
		r.config.Metrics.checked(checkFailed)
		return nil, err
	}
	return p, err
}

// appliesOnServer reports whether a manifest uses server-side apply.
func appliesOnServer(m apply.Manifest) bool {
	return m.Config.Strategy.Type == workv1.UpdateStrategyTypeServerSideApply
}

// bind restricts an applier to the writes that the executor could make, if there is an executor.
func (r *rights) bind(a *apply.Applier) {
	if r.authority != nil {
		a.Objects = executor.Writer{Objects: a.Objects, Cluster: r.config.Client, Account: r.authority.account, Kept: r.config.KeepPermits}
		a.Exact = true
	}
}

// noteAnswer handles a write that was refused although the executor had a permit for it.
func (r *rights) noteAnswer(ctx context.Context, res apply.Result) apply.Result {
	var denied *executor.DeniedError
	p, has := r.permits[res.Ref]
	if !has || p.denied || !errors.As(res.Err, &denied) {
		return res
	}
	r.config.Metrics.checked(checkDenied)
	if !r.authority.before[res.Ref].denied {
		r.log.InfoContext(ctx, deniedText, "object", res.Ref.String(), "executor", p.account.User(), "reason", res.Err)
	}
	p.denied = true
	r.permits[res.Ref] = p
	return res
}

const deniedText = "the executor may not apply an object"

// remember returns the result for an object that is known to be as wanted. If it may no longer be applied, it
// stays unchanged and only its status is reported.
func remember(m apply.Manifest, k apply.KnownState) apply.Result {
	res := apply.Remembered(m, k)
	if m.Err != nil {
		res.Action, res.Err = apply.Reject, m.Err
	}
	return res
}

// holds reports whether a permission is still valid for a manifest. It ignores role changes.
func (r *rights) holds(p permit, m apply.Manifest) bool {
	if r.full || p.owned != m.Owned || p.applied != appliesOnServer(m) {
		return false
	}
	if p.until.IsZero() {
		return r.config.Roles.Watched()
	}
	return r.now.Before(p.until)
}

// hides reports whether the content of an object must not be reported. This is so if no work may have the
// object, or if the executor may not read it, or if that is unknown.
func (r *rights) hides(res apply.Result) bool {
	if workpolicy.Refused(res.Err) != nil {
		return true
	}
	if r.authority == nil || res.Err == nil {
		return false
	}
	p, known := r.permits[res.Ref]
	return !known || p.hidden
}

// whyHidden returns the error that is reported instead of feedback.
func whyHidden(err error) error {
	if refused := workpolicy.Refused(err); refused != nil {
		return refused
	}
	return errHidden
}

var errHidden = errors.New("the executor is not allowed to get the object")

// refused reports whether an error ends when the executor or the agent gets a right.
func refused(err error) bool {
	return errors.As(err, new(*executor.DeniedError)) || missesRight(err)
}

// missesRight reports whether the agent itself lacks a right.
func missesRight(err error) bool {
	_, missing := kubeclient.MissingRule(err)
	return missing
}

// comeBack returns the wait until the next reconciliation because a right is missing, a permit expires, or roles
// changed; 0 if none is needed.
func (r *rights) comeBack(results []apply.Result) (next time.Duration) {
	due := r.roles.lookDue(r.config.Now())
	for _, res := range results {
		switch {
		case errors.As(res.Err, new(*executor.DeniedError)):
			next = sooner(next, sooner(executor.RetryAfter, due))
		case missesRight(res.Err) || missesRight(res.ReadErr):
			next = sooner(next, sooner(r.missingWait(), due))
		}
	}
	for _, p := range r.permits {
		if p.failed {
			continue // the check failed, and its error causes a retry
		}
		if !p.until.IsZero() && !p.denied {
			next = sooner(next, max(time.Millisecond, p.until.Sub(r.now)))
		}
		if !r.ofNow(p) {
			next = sooner(next, max(time.Millisecond, due))
		}
	}
	return next
}

// missingWait returns when to retry after a missing right. The wait is short unless the role watch certainly
// reports a change.
func (r *rights) missingWait() time.Duration {
	if r.config.Roles != nil && r.config.Roles.Watched() && r.roles.inForceAt(r.config.Now()).IsZero() {
		return missingTTL
	}
	return executor.RetryAfter
}

// sooner returns the shorter of two waits; 0 means never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// noteRefusals records the objects with a missing right, so that a change of roles wakes the key.
func (r *rights) noteRefusals(err error, results ...apply.Result) {
	needed := r.authority != nil || missesRight(err)
	r.missing = nil
	for _, res := range results {
		if !missesRight(res.Err) && !missesRight(res.ReadErr) {
			continue
		}
		if needed = true; r.missing == nil {
			r.missing = map[kubeclient.Ref]bool{}
		}
		r.missing[res.Ref] = true
	}
	r.needRoles(needed)
}

// needRoles records whether changes of roles concern the key.
func (r *rights) needRoles(needed bool) {
	if !needed {
		r.roles.wait(r.key, 0)
		return
	}
	r.roles.wait(r.key, max(1, len(r.permits), len(r.missing)))
	if r.config.Roles != nil {
		r.config.Roles.StartWatch()
	}
}

// failed returns the errors of checks after which the reconciliation must be repeated.
func (r *rights) failed() error {
	if r.authority == nil {
		return nil
	}
	return r.authority.failed
}

// explained adds the next step to an error about a missing right.
func explained(err error) error {
	rule, missing := kubeclient.MissingRule(err)
	if !missing {
		return err
	}
	return fmt.Errorf(`%w; if it is to be allowed, make a ClusterRole on the cluster that has the label %s: "true" and the rule %s`, err, aggregateLabel, kubeclient.FormatRule(rule))
}

// aggregateLabel marks the ClusterRoles whose rules are aggregated for the agent.
const aggregateLabel = "open-cluster-management.io/aggregate-to-work"
