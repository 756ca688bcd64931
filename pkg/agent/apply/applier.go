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

// Action is what applying a manifest did, or would do.
type Action string

// The actions.
const (
	// Unchanged: nothing to write.
	Unchanged Action = "unchanged"
	// Create: there was no such object.
	Create Action = "create"
	// Update: the object differed.
	Update Action = "update"
	// Recreate: the object was deleted and made anew, because it could not be
	// changed into what it should be.
	Recreate Action = "recreate"
	// Refuse: the manifest cannot be applied; nothing was written.
	Refuse Action = "refuse"
)

// Known is what there was to know about an object when it was last found or
// made as the manifest wants it, or when the server rejected that. The zero
// value is nothing.
type Known struct {
	UID types.UID
	// want identifies manifest, owner and ownership, content what the object
	// held besides metadata and status after the server completed it.
	want, content [sha256.Size]byte
	// rejection is why it could not be made so, if the server found the write
	// wrong in itself; then content identifies the state it was in.
	rejection *rejection
	// dropped are the fields that the server did not keep; nil: it kept all. Then it is not as
	// it should be. due: the write is to be tried again.
	dropped *dropped
	due     bool
	// fights is about fields of other managers; nil is nothing.
	fights *fights
}

// Same reports whether k is about this manifest and owner.
func (k Known) Same(m Manifest, o Owner) bool { return k.UID != "" && k.want == wanted(m, o) }

// Step is one manifest, read and compared.
type Step struct {
	Manifest
	Action Action
	// Live is the object as it was read; nil unless present.
	Live     *unstructured.Unstructured
	Presence conditions.Presence
	// ReadErr is why the presence is Unreadable.
	ReadErr error

	body     *unstructured.Unstructured // what to send
	patch    []byte                     // what to send in place of body
	recreate *unstructured.Unstructured // what to make in its place, if body is refused for what the object is
	by       kubeclient.FieldManager    // who applies body on the server; nobody if its Name is empty
	handOver []byte                     // what to send before body, see handOver
	known    Known
	// Redefined: the definition of the kind was written a moment ago, and may need another one
	// to count. A write that the server rejects, or of which it drops fields, is tried again at once.
	Redefined bool
	manifest  *unstructured.Unstructured // what Update compares with; nil if it does not look at the content
	view      view                       // of Live beside manifest
	metadata  bool                       // labels, annotations or owners differ
	// supposed: nobody has read whether there is an object. unmade: it was supposed
	// that there is none, and the server refused to make one.
	supposed, unmade bool
}

// Result is what became of a manifest.
type Result struct {
	Manifest
	// Action is what was done; Err, if not nil, says that it failed. It includes
	// Manifest.Err.
	Action Action
	Err    error
	// Live is the object afterwards; nil unless present. After a failed write it
	// is the object as it was read before.
	Live     *unstructured.Unstructured
	Presence conditions.Presence
	ReadErr  error
	// Known is what to remember; zero unless the object is there and as it should
	// be, or cannot be made so.
	Known Known
	// Unmade: whatever there is, this work did not make it, for it may not.
	Unmade bool
	// Retried: it was tried because the cluster had dropped fields before, not because the
	// object had been changed.
	Retried bool
	// Shared: other managers have fields of it that stay.
	Shared bool
}

// UID returns the uid of the object, "" unless it is present.
func (r *Result) UID() types.UID {
	if r.Live == nil {
		return r.Known.UID
	}
	return r.Live.GetUID()
}

// Within a round a write that met another writer is tried again this often,
// after waits that begin at retryBase and grow by retryFactor.
const (
	attempts    = 4
	retryBase   = 10 * time.Millisecond
	retryFactor = 5
)

// Applier writes objects. Its methods may be called concurrently.
type Applier struct {
	Objects kubeclient.Objects
	// Wait sleeps; its error (of ctx) ends the attempts. Jitter is added by it.
	Wait func(ctx context.Context, d time.Duration) error
	// Guard says which of the objects that there are no work may have; nil: none.
	Guard *workpolicy.Guard
	// Exact: each write is one to the very object that was read, or makes one.
	Exact bool
}

// Plan reads the object of a manifest and compares. It writes nothing. known is
// what was remembered of the object, or zero.
func (a Applier) Plan(ctx context.Context, m Manifest, owner Owner, known Known) Step {
	s := Step{Manifest: m, Action: Refuse, known: known}
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

// Suppose is Plan for an object that is not likely to exist: it is planned as if
// it did not, without reading. Apply reads it all the same if it cannot be made.
// Where the strategy has to know what is there, Suppose reads too.
func (a Applier) Suppose(ctx context.Context, m Manifest, owner Owner) Step {
	switch m.Config.Strategy.Type {
	case workv1.UpdateStrategyTypeReadOnly, workv1.UpdateStrategyTypeServerSideApply:
		return a.Plan(ctx, m, owner, Known{})
	}
	if !m.Resolved || m.Err != nil {
		return a.Plan(ctx, m, owner, Known{})
	}
	s := Step{Manifest: m, Action: Refuse, Presence: conditions.Absent, supposed: true}
	s.compare(ctx, owner)
	return s
}

// Remembered is the result for an object that is known not to have changed
// since it was as it should be.
func Remembered(m Manifest, k Known) Result {
	return Result{Manifest: m, Action: Unchanged, Presence: conditions.Present, Known: k, Err: k.missing()}
}

// compare fills in what to do, which depends on the strategy. Load let none
// pass that is not here.
func (s *Step) compare(ctx context.Context, owner Owner) {
	switch s.Config.Strategy.Type {
	case workv1.UpdateStrategyTypeReadOnly:
		s.Action = Unchanged // whatever the object is, even absent
	case workv1.UpdateStrategyTypeCreateOnly:
		s.compareCreateOnly(owner)
	case workv1.UpdateStrategyTypeServerSideApply:
		s.compareApplied(ctx, owner)
	default:
		s.compareUpdate(owner)
	}
}

// compareCreateOnly makes the object if there is none; of one that exists only
// our owner reference is written.
func (s *Step) compareCreateOnly(owner Owner) {
	if s.Live == nil {
		s.Action, s.body = Create, forCreate(identify(s.Manifest), owner, s.Owned)
		return
	}
	if _, special := rules[s.Live.GroupVersionKind()]; !special && s.retries(owner) {
		s.compareWhole(identify(s.Manifest), owner) // what was made is not complete yet
		return
	}
	s.Action = Unchanged
	if patch, needed := owner.patch(s.Live, s.Owned); needed {
		s.Action, s.patch = Update, patch
	}
}

// compareUpdate brings the object in line with the manifest, in the way of its
// kind.
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

// compareWhole is for kinds that are replaced as a whole. The server completes
// such objects, so that a comparison with the manifest finds differences for
// ever; once the object has been written from this very manifest, its content
// is compared with what came out then.
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

// left reports whether the content of the object is what came out when it was
// last written from this very manifest: however the server completed it, that is
// no difference.
func (s *Step) left(owner Owner) bool {
	return !s.known.due && s.same(owner, s.digest(s.Live, s.view.kept))
}

// same reports whether the content of the object is what the write of this very manifest left.
func (s *Step) same(owner Owner, content [sha256.Size]byte) bool {
	return s.known.Same(s.Manifest, owner) && s.known.content == content
}

// Apply does what the step says. A write that met another writer, or a definition
// that does not count yet, is planned and tried again.
func (a Applier) Apply(ctx context.Context, s Step, owner Owner) Result {
	wait, redefined := retryBase, s.Redefined
	for attempt := 1; ; attempt++ {
		r := a.write(ctx, s, owner)
		if s.supposed && r.Err != nil && !r.Known.Incomplete() {
			s = a.Plan(ctx, s.Manifest, owner, s.known)
			s.unmade = apierrors.IsForbidden(r.Err)
			if s.Action == Create && !r.metOther() {
				return r // there is no such object, and it is known why
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

// metOther reports whether somebody else wrote, made or removed the object
// between our reading and our writing. A field conflict is not that: it lasts.
func (r *Result) metOther() bool {
	return apierrors.IsConflict(r.Err) && !kubeclient.IsFieldConflict(r.Err) || apierrors.IsAlreadyExists(r.Err) || r.Action == Update && apierrors.IsNotFound(r.Err)
}

func (a Applier) write(ctx context.Context, s Step, owner Owner) Result {
	r := Result{Manifest: s.Manifest, Action: s.Action, Err: s.Err, Live: s.Live, Presence: s.Presence, ReadErr: s.ReadErr, Unmade: s.unmade && s.Action == Refuse, Shared: s.view.shared}
	r.Retried = s.known.due
	written := s.Live
	var err error
	var warnings kubeclient.Warnings
	ctx = kubeclient.WithWarnings(ctx, &warnings)
	switch s.Action {
	case Refuse:
		if Rejected(s.Err) {
			r.Known = s.known
		}
		return r
	case Unchanged:
		if s.Live == nil {
			return r // only to be looked at, and not there
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
			return s.asBefore() // it was only tried whether the cluster keeps the fields by now
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

// look reads an object after a write that the server answered with an error of its own, as that of a
// webhook: such an error does not tell whether there is an object.
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

// send makes or changes the object, in the way of the strategy. What it did
// instead, or before it failed, is noted in r.
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

var errBeingDeleted = errors.New("the object is being deleted: it is made anew when it is gone")

func (a Applier) recreate(ctx context.Context, s Step, body *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if s.Live.GetDeletionTimestamp() != nil {
		return nil, errBeingDeleted
	}
	if err := a.Objects.Delete(ctx, s.Ref, s.Live.GetUID()); err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("replace the object: %w", err)
	}
	return a.Objects.Create(ctx, s.Ref.GroupVersionResource, body)
}

// fail records a failed write. What was read before still holds if the server
// refused the write; otherwise nobody knows.
func (r *Result) fail(err error) {
	r.Err = err
	if errors.Is(err, errBeingDeleted) {
		r.Action = Refuse
		return
	}
	var status apierrors.APIStatus
	var slow *kubeclient.SlowError // it was not even sent
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
		_, _ = h.Write([]byte("stringData in data")) // the memory from before does not count
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// digest identifies what an object holds besides metadata and status.
func digest(o *unstructured.Unstructured) [sha256.Size]byte { return digestBesides(o, fieldSet{}) }

// digestBesides is digest without these places.
func digestBesides(o *unstructured.Unstructured, fields fieldSet) [sha256.Size]byte {
	content := any(withoutMetadata(o))
	if len(fields.below) > 0 {
		content = fields.without(content)
	}
	b, err := json.Marshal(content)
	if err != nil {
		// Unstructured content came from JSON and can go back.
		panic(fmt.Sprintf("marshal %s: %v", o.GetName(), err))
	}
	return sha256.Sum256(b)
}
