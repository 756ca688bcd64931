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

// A permission whose end no watch would show is asked for again after a random
// time between one and one and a half of these.
const permitTime = 4 * time.Minute

// What the agent lacks a right for is tried again after missingTTL, if roles are
// watched: the right may come from something else.
const missingTTL = 10 * time.Minute

// permit says that an executor was allowed to apply an object, or denied.
type permit struct {
	account executor.Account
	owned   bool
	applied bool // see executor.Object
	denied  bool
	// hidden: reading it is denied, too.
	hidden bool
	// changes is the count of changes of roles before it was asked for, early says
	// that the server may not have known of the last.
	changes uint64
	early   bool
	// failed: nobody answered when it was asked for again.
	failed bool
	// until is how long it counts; zero: while roles are watched and do not change.
	// One that was given soon after a change counts for a minute or less.
	until time.Time
}

// authority is in whose name a reconciliation applies.
type authority struct {
	account executor.Account
	err     error // why the account is not known
	// before are the permits of earlier reconciliations, until is when those expire that
	// are asked for in this one.
	before map[kubeclient.Ref]permit
	until  time.Time
	// failed are the errors of asking again for what was allowed so far.
	failed error
}

// rights are what a reconciliation may do, in the name of the executor of its work or
// in that of the agent.
type rights struct {
	config *CoreConfig
	roles  *roleState
	*keyState
	reconcileInput
	// authority is in whose name manifests are applied; nil: in that of the agent.
	authority *authority
}

// actFor begins to apply a work in the name of its executor, if it has one.
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

// ofNow reports whether a permit was given, or denied, with the roles of now.
func (r *rights) ofNow(p permit) bool {
	changes, _ := r.roles.present(r.now)
	return p.changes == changes && !p.early
}

// newPermit is one that is about to be asked for.
func (r *rights) newPermit(m apply.Manifest) *permit {
	changes, early := r.roles.present(r.config.Now())
	return &permit{account: r.authority.account, owned: m.Owned, applied: appliesOnServer(m), until: r.authority.until, changes: changes, early: early}
}

// permitted returns why a manifest must not be applied in the name of the
// executor; nil if it may, or if there is no executor. same says that the object
// is as it should be: nothing is going to be written then, so that an earlier
// permission counts, also while nobody answers whether it still holds.
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
		last.failed = false // it was not asked for now
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

// last returns the permission that the account had last for an object, whether
// it still counts or not; nil if it had none.
func (a *authority) last(ref kubeclient.Ref) *permit {
	if p, has := a.before[ref]; has && p.account == a.account && !p.denied {
		return &p
	}
	return nil
}

// suffices reports whether nothing needs to be asked. A permission that counts
// is enough where nothing is written, also until changed roles are looked at, or
// where permissions are kept.
func (r *rights) suffices(p permit, m apply.Manifest, same bool) bool {
	switch {
	case !r.holds(p, m):
		return false
	case same:
		return r.ofNow(p) || r.roles.lookDue(r.config.Now()) > 0
	}
	return r.config.KeepPermits && r.ofNow(p)
}

// query asks the cluster, and returns the answer with why it is no; nil and why,
// if there is none.
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

// appliesOnServer reports whether a manifest is applied on the server.
func appliesOnServer(m apply.Manifest) bool {
	return m.Config.Strategy.Type == workv1.UpdateStrategyTypeServerSideApply
}

// bind has an applier write only what the executor could write, if there is one.
func (r *rights) bind(a *apply.Applier) {
	if r.authority != nil {
		a.Objects = executor.Writer{Objects: a.Objects, Cluster: r.config.Client, Account: r.authority.account, Kept: r.config.KeepPermits}
		a.Exact = true
	}
}

// noteAnswer notes that the executor was refused a write that it had a permission for.
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

// remember is the result for an object that is known to be as it should be. If it
// may not be applied any more, it stays so, and is only told of.
func remember(m apply.Manifest, k apply.Known) apply.Result {
	res := apply.Remembered(m, k)
	if m.Err != nil {
		res.Action, res.Err = apply.Refuse, m.Err
	}
	return res
}

// holds reports whether a permission of the account still counts, changes of
// roles aside.
func (r *rights) holds(p permit, m apply.Manifest) bool {
	if r.full || p.owned != m.Owned || p.applied != appliesOnServer(m) {
		return false
	}
	if p.until.IsZero() {
		return r.config.Roles.Watched()
	}
	return r.now.Before(p.until)
}

// hides reports whether nothing that is in an object may be told, because no work may
// have it, or because the executor may not read it, or nobody knows whether it may.
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

// whyHidden takes the place of feedback then.
func whyHidden(err error) error {
	if refused := workpolicy.Refused(err); refused != nil {
		return refused
	}
	return errHidden
}

var errHidden = errors.New("the executor is not allowed to get the object")

// refused reports whether an error ends when somebody gets a right: the
// executor, or the agent.
func refused(err error) bool {
	return errors.As(err, new(*executor.DeniedError)) || missesRight(err)
}

// missesRight reports whether the agent itself lacks a right.
func missesRight(err error) bool {
	_, missing := kubeclient.MissingRule(err)
	return missing
}

// comeBack is when to look again because somebody lacks a right, a permit
// expires, or roles changed; 0 if never.
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
			continue // that is an error, and has its own waits
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

// missingWait is when to try again what the agent may not do: soon, unless it is
// certain that somebody tells when that changes.
func (r *rights) missingWait() time.Duration {
	if r.config.Roles != nil && r.config.Roles.Watched() && r.roles.inForceAt(r.config.Now()).IsZero() {
		return missingTTL
	}
	return executor.RetryAfter
}

// sooner returns the shorter of two times, of which 0 is never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// noteRefusals sees to it that a right that the agent or the executor lacks is
// noticed when somebody gives it.
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

// needRoles notes whether a change of roles concerns the key.
func (r *rights) needRoles(needed bool) {
	if !needed {
		r.roles.wait(r.key, 0)
		return
	}
	r.roles.wait(r.key, max(1, len(r.permits), len(r.missing)))
	if r.config.Roles != nil {
		r.config.Roles.Need()
	}
}

// failed are errors of asking, after which a reconciliation is to be repeated.
func (r *rights) failed() error {
	if r.authority == nil {
		return nil
	}
	return r.authority.failed
}

// explained adds to a refusal for want of a right what to do about it.
func explained(err error) error {
	rule, missing := kubeclient.MissingRule(err)
	if !missing {
		return err
	}
	return fmt.Errorf(`%w; if it is to be allowed, make a ClusterRole on the cluster that has the label %s: "true" and the rule %s`, err, aggregateLabel, kubeclient.FormatRule(rule))
}

// aggregateLabel marks the ClusterRoles whose rules the agent gets.
const aggregateLabel = "open-cluster-management.io/aggregate-to-work"
