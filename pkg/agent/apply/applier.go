package apply

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/executor"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/workpolicy"
)

// Action is the planned or executed action for a manifest.
type Action string

// The actions.
const (
	// Unchanged: nothing is written.
	Unchanged Action = "unchanged"
	// Create: the object did not exist.
	Create Action = "create"
	// Update: the object differed.
	Update Action = "update"
	// Recreate: the object was deleted and created again, because it could not be updated.
	Recreate Action = "recreate"
	// Reject: the manifest cannot be applied; nothing is written.
	Reject Action = "reject"
)

// KnownState is the remembered state of an object that was found or written as the manifest wants it, or whose
// write the server rejected. The zero value means that nothing is known.
type KnownState struct {
	UID types.UID
	// want is the hash of manifest, owner and ownership. content is the hash of the object, without metadata and
	// status, after the server completed it.
	want, content [sha256.Size]byte
	// rejection is set if the server rejected the write as invalid. content then is the fingerprint of the object
	// at that time.
	rejection *rejection
	// dropped has the fields that the server did not keep; nil: it kept all. If set, the object is not as wanted.
	// due: the write must be retried.
	dropped *dropped
	due     bool
	// fights is the state about fields of other managers; nil: none.
	fights *fights
}

// Matches reports whether k belongs to this manifest and owner.
func (k KnownState) Matches(m Manifest, o Owner) bool { return k.UID != "" && k.want == wanted(m, o) }

// Step is the planned step of one manifest, after its object was read and compared.
type Step struct {
	Manifest
	Action Action
	// Live is the object as read; nil unless present.
	Live     *unstructured.Unstructured
	Presence conditions.Presence
	// ReadErr is the reason for presence Unreadable.
	ReadErr error

	body     *unstructured.Unstructured // the object to send
	patch    []byte                     // the patch to send instead of body
	recreate *unstructured.Unstructured // the object to create instead, if the update with body is refused for this kind of change
	by       kubeclient.FieldManager    // field manager of a server-side apply of body; none if its Name is empty
	handOver []byte                     // the patch to send before body, see handOver
	known    KnownState
	// Redefined: the definition of the kind was just written and may not be in effect yet. If the server rejects
	// the write or drops fields of it, the write is retried at once.
	Redefined bool
	manifest  *unstructured.Unstructured // compared by Update; nil if Update ignores the content
	view      view                       // of Live and manifest
	metadata  bool                       // labels, annotations or owners differ
	// supposed: the object was assumed absent without a read. unmade: it was assumed absent, but the server
	// refused to create it.
	supposed, unmade bool
}

// Result is the result of applying a manifest.
type Result struct {
	Manifest
	// Action is the executed action. Err, if not nil, is its error; it includes Manifest.Err.
	Action Action
	Err    error
	// Live is the object afterwards; nil unless present. After a failed write it is the object as read before.
	Live     *unstructured.Unstructured
	Presence conditions.Presence
	ReadErr  error
	// Known is the state to remember; zero unless the object is as wanted or its write was rejected.
	Known KnownState
	// Unmade: the cluster refused to let the work create the object. An existing object is of another client.
	Unmade bool
	// Retried: the write was a retry because the cluster had dropped fields, not because the object had changed.
	Retried bool
	// Shared: other managers own fields of the object that stay.
	Shared bool
}

// UID returns the uid of the object, "" unless it is present.
func (r *Result) UID() types.UID {
	if r.Live == nil {
		return r.Known.UID
	}
	return r.Live.GetUID()
}

// attempts bounds the writes of an object in one round if they conflict with other writers. The waits begin at
// retryBase and grow by retryFactor.
const (
	attempts    = 4
	retryBase   = 10 * time.Millisecond
	retryFactor = 5
)

// Applier writes objects. Its methods may be called concurrently.
type Applier struct {
	Objects kubeclient.Objects
	// Wait sleeps and adds jitter. Its error, that of ctx, ends the attempts.
	Wait func(ctx context.Context, d time.Duration) error
	// Guard decides which existing objects no work may have; nil: none are forbidden.
	Guard *workpolicy.Guard
	// Exact: each write creates an object or is conditional on the object as read.
	Exact bool
}

// Plan reads the object of a manifest and compares it. It writes nothing. known is the remembered state of the
// object, or zero.
func (a Applier) Plan(ctx context.Context, m Manifest, owner Owner, known KnownState) Step {
	s := Step{Manifest: m, Action: Reject, known: known}
	if !m.Resolved {
		s.Presence, s.ReadErr = m.presence()
		return s
	}
	live, err := a.Objects.Get(ctx, m.Ref)
	switch {
	case apierrors.IsNotFound(err):
		s.Presence = conditions.Absent
	case err != nil:
		s.Presence, s.ReadErr = conditions.Unreadable, err
		if s.Err == nil && m.Config.Strategy.Type != workv1.UpdateStrategyTypeReadOnly {
			s.Err = err
		}
	default:
		s.Presence, s.Live = conditions.Present, live
		if refused := a.Guard.Object(ctx, m.ID(), live); refused != nil {
			s.Err = refused
			if workpolicy.Refused(refused) != nil {
				s.Err = permanent{refused}
			}
		}
	}
	switch {
	case s.Err != nil:
	case s.rejected(owner):
		s.Err = known.rejection
	default:
		s.compare(ctx, owner)
	}
	return s
}

// Suppose is Plan for an object that probably does not exist: it assumes its absence without a read. Apply
// reads the object if the creation fails. For strategies that depend on the existing object, Suppose reads too.
func (a Applier) Suppose(ctx context.Context, m Manifest, owner Owner) Step {
	switch m.Config.Strategy.Type {
	case workv1.UpdateStrategyTypeReadOnly, workv1.UpdateStrategyTypeServerSideApply:
		return a.Plan(ctx, m, owner, KnownState{})
	}
	if !m.Resolved || m.Err != nil {
		return a.Plan(ctx, m, owner, KnownState{})
	}
	s := Step{Manifest: m, Action: Reject, Presence: conditions.Absent, supposed: true}
	s.compare(ctx, owner)
	return s
}

// Remembered returns the result for an object that is unchanged since it was as wanted.
func Remembered(m Manifest, k KnownState) Result {
	return Result{Manifest: m, Action: Unchanged, Presence: conditions.Present, Known: k, Err: k.missing()}
}

// compare sets the action according to the strategy. Load has rejected all other strategies.
func (s *Step) compare(ctx context.Context, owner Owner) {
	switch s.Config.Strategy.Type {
	case workv1.UpdateStrategyTypeReadOnly:
		s.Action = Unchanged // ReadOnly never writes, even if the object is absent
	case workv1.UpdateStrategyTypeCreateOnly:
		s.compareCreateOnly(owner)
	case workv1.UpdateStrategyTypeServerSideApply:
		s.compareApplied(ctx, owner)
	default:
		s.compareUpdate(owner)
	}
}

// compareCreateOnly creates the object if it does not exist. Of an existing one it writes only the owner
// reference.
func (s *Step) compareCreateOnly(owner Owner) {
	if s.Live == nil {
		s.Action, s.body = Create, forCreate(identify(s.Manifest), owner, s.Owned)
		return
	}
	if _, special := rules[s.Live.GroupVersionKind()]; !special && s.retries(owner) {
		s.compareWhole(identify(s.Manifest), owner) // the created object is not complete yet
		return
	}
	s.Action = Unchanged
	if patch, needed := owner.patch(s.Live, s.Owned); needed {
		s.Action, s.patch = Update, patch
	}
}

// compareUpdate compares the object with the manifest by the rules of its kind.
func (s *Step) compareUpdate(owner Owner) {
	want := identify(s.Manifest)
	r, special := rules[want.GroupVersionKind()]
	if special && r.prepare != nil {
		switch err := r.prepare(want); {
		case errors.Is(err, errMalformed):
			want, special = identify(s.Manifest), false
		case err != nil:
			s.Err = err
			return
		}
	}
	want = s.beside(want, !special || r.merge != nil, owner)
	switch {
	case s.Live == nil:
		s.Action, s.body = Create, forCreate(want, owner, s.Owned)
	case !special:
		s.compareWhole(want, owner)
	default:
		s.compareByRule(r, want, owner)
	}
}

// compareWhole handles kinds that are replaced as a whole. The server completes such objects, so a comparison
// with the manifest always finds differences. If the last write had the same manifest, the content is therefore
// compared with the result of that write.
func (s *Step) compareWhole(want *unstructured.Unstructured, owner Owner) {
	next := want.DeepCopy()
	changed := mergeMetadata(next, want, s.Live, owner, s.Owned)
	s.metadata = changed
	if !changed && !s.left(owner) {
		changed = differs(want, s.Live)
	}
	s.Action, s.body = Unchanged, next
	if changed {
		s.Action = Update
	}
}

func (s *Step) compareByRule(r rule, want *unstructured.Unstructured, owner Owner) {
	if r.carry != nil {
		r.carry(want, s.Live)
	}
	next := s.Live.DeepCopy()
	var changed bool
	if r.bare {
		changed = mergeOwner(next, s.Live, owner, s.Owned)
	} else {
		changed = mergeMetadata(next, want, s.Live, owner, s.Owned)
	}
	s.metadata = changed
	if r.merge != nil && (changed || !s.left(owner)) {
		changed = r.merge(next, want, changed) || changed
	}
	s.Action, s.body, s.recreate = Unchanged, next, remake(want, next)
	switch {
	case changed && r.recreate != nil && r.recreate(s.Live, want):
		s.Action, s.body = Recreate, s.recreate
	case changed:
		s.Action = Update
	}
}

// left reports whether the content of the object is that of the last write, which had the same manifest. Fields
// that the server completed are then no difference.
func (s *Step) left(owner Owner) bool {
	return !s.known.due && s.same(owner, s.digest(s.Live, s.view.kept))
}

// same reports whether content is that of the last write, which had the same manifest.
func (s *Step) same(owner Owner, content [sha256.Size]byte) bool {
	return s.known.Matches(s.Manifest, owner) && s.known.content == content
}

// Apply executes the step. It plans and retries a write that conflicts with another writer, or whose definition
// is not in effect yet.
func (a Applier) Apply(ctx context.Context, s Step, owner Owner) Result {
	wait, redefined := retryBase, s.Redefined
	for attempt := 1; ; attempt++ {
		r := a.write(ctx, s, owner)
		if s.supposed && r.Err != nil && !r.Known.Incomplete() {
			s = a.Plan(ctx, s.Manifest, owner, s.known)
			s.unmade = apierrors.IsForbidden(r.Err)
			if s.Action == Create && !r.metOther() {
				return r // the object does not exist, and the reason is known
			}
			attempt = 0
			continue
		}
		early := redefined && (r.Known.Incomplete() || Rejected(r.Err))
		last := attempts
		if early {
			last++
		}
		if attempt >= last || !early && !r.metOther() || a.Wait(ctx, wait) != nil {
			return r
		}
		wait *= retryFactor
		if early {
			s.known = r.Known.Retry()
		}
		s = a.Plan(ctx, s.Manifest, owner, s.known)
	}
}

// metOther reports whether another client wrote, created or removed the object between the read and the write.
// A field conflict does not count: it lasts.
func (r *Result) metOther() bool {
	return apierrors.IsConflict(r.Err) && !kubeclient.IsFieldConflict(r.Err) || apierrors.IsAlreadyExists(r.Err) || r.Action == Update && apierrors.IsNotFound(r.Err)
}

func (a Applier) write(ctx context.Context, s Step, owner Owner) Result {
	r := Result{Manifest: s.Manifest, Action: s.Action, Err: s.Err, Live: s.Live, Presence: s.Presence, ReadErr: s.ReadErr, Unmade: s.unmade && s.Action == Reject, Shared: s.view.shared}
	r.Retried = s.known.due
	written := s.Live
	var err error
	var warnings kubeclient.Warnings
	ctx = kubeclient.WithWarnings(ctx, &warnings)
	switch s.Action {
	case Reject:
		if Rejected(s.Err) {
			r.Known = s.known
		}
		return r
	case Unchanged:
		if s.Live == nil {
			return r // ReadOnly: the object is absent
		}
	case Create, Update:
		written, err = a.send(ctx, &s, owner, &r)
	case Recreate:
		written, err = a.recreate(ctx, s, s.body)
	}
	if err != nil {
		r.fail(err)
		a.look(ctx, &r)
		if s.retries(owner) && !r.metOther() {
			return s.asBefore() // the write only tested whether the cluster keeps the fields now
		}
		if wrongInItself(err) && s.yields(&r, owner) {
			return r
		}
		r.reject(owner, s.known.fights)
		return r
	}
	r.Live, r.Presence, r.ReadErr = written, conditions.Present, nil
	r.Known = s.remember(r.Action, written, owner)
	r.Known.dropped = s.dropped(written, r.Known.content, warnings.UnknownFields(), owner)
	r.Err = r.Known.missing()
	return r
}

// look reads an object after a write that failed with a server error, such as that of a webhook. Such an error
// does not show whether the object exists.
func (a Applier) look(ctx context.Context, r *Result) {
	if r.Presence != conditions.Unreadable || !errors.As(r.Err, new(apierrors.APIStatus)) || r.metOther() {
		return
	}
	live, err := a.Objects.Get(ctx, r.Ref)
	switch {
	case apierrors.IsNotFound(err):
		r.Presence, r.ReadErr = conditions.Absent, nil
	case err != nil:
		r.ReadErr = err
	default:
		r.Presence, r.ReadErr, r.Live = conditions.Present, nil, live
	}
}

// send creates or changes the object according to the strategy. Deviations, and actions before a failure, are
// recorded in r.
func (a Applier) send(ctx context.Context, s *Step, owner Owner, r *Result) (*unstructured.Unstructured, error) {
	gvr := s.Ref.GroupVersionResource
	switch {
	case s.by.Name != "":
		o, err := a.serverSide(ctx, s, owner)
		if err != nil && o != nil {
			r.Live, r.Presence = o, conditions.Present
		}
		return o, err
	case s.Action == Create:
		return a.Objects.Create(ctx, gvr, s.body)
	case s.patch != nil:
		return a.Objects.Patch(ctx, s.Ref, s.patch, "")
	}
	o, err := a.Objects.Update(ctx, gvr, s.body)
	if rule := rules[s.body.GroupVersionKind()]; err != nil && rule.recreateOn != nil && rule.recreateOn(err) {
		r.Action, s.body = Recreate, s.recreate
		return a.recreate(ctx, *s, s.recreate)
	}
	return o, err
}

var errBeingDeleted = errors.New("the object is being deleted; it is created again when it is gone")

func (a Applier) recreate(ctx context.Context, s Step, body *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if s.Live.GetDeletionTimestamp() != nil {
		return nil, errBeingDeleted
	}
	if err := a.Objects.Delete(ctx, s.Ref, s.Live.GetUID()); err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("replace the object: %w", err)
	}
	return a.Objects.Create(ctx, s.Ref.GroupVersionResource, body)
}

// fail records a failed write. If the server refused the write, the previous read is still valid. Otherwise the
// state is unknown.
func (r *Result) fail(err error) {
	r.Err = err
	if errors.Is(err, errBeingDeleted) {
		r.Action = Reject
		return
	}
	var status apierrors.APIStatus
	var slow *kubeclient.SlowError // the request was not sent
	refused := errors.As(err, &slow) || errors.As(err, new(*executor.DeniedError)) || errors.As(err, &status) && status.Status().Code >= 400 && status.Status().Code < 500
	if r.Action == Recreate || !refused || r.metOther() && !apierrors.IsConflict(err) {
		r.Presence, r.ReadErr, r.Live = conditions.Unreadable, err, nil
	}
}

func wanted(m Manifest, o Owner) [sha256.Size]byte {
	h := sha256.New()
	h.Write(m.hash[:])
	_, _ = fmt.Fprintf(h, "%q %q %t %d", o.Name, o.UID, m.Owned, knownFormat)
	if m.Config.Strategy.Type == workv1.UpdateStrategyTypeServerSideApply && m.Object != nil && foldStringData(m.Object.DeepCopy()) {
		_, _ = h.Write([]byte("stringData in data")) // the state remembered before is invalid
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// digest returns the hash of an object without metadata and status.
func digest(o *unstructured.Unstructured) [sha256.Size]byte { return digestBesides(o, fieldSet{}) }

// digestBesides is digest without the given fields.
func digestBesides(o *unstructured.Unstructured, fields fieldSet) [sha256.Size]byte {
	content := any(withoutMetadata(o))
	if len(fields.below) > 0 {
		content = fields.without(content)
	}
	b, err := json.Marshal(content)
	if err != nil {
		// Unstructured content came from JSON and always marshals.
		panic(fmt.Sprintf("marshal %s: %v", o.GetName(), err))
	}
	return sha256.Sum256(b)
}
