package appliedwork

import (
	"context"
	"errors"
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/workpolicy"
)

// RemovalAction is the action that removes an entry, for the present state of its object.
type RemovalAction string

// The actions.
const (
	// Drop: nothing to do; the work does not own the object, or no longer.
	Drop RemovalAction = "drop"
	// Disown: the object stays; only the work's owner reference is removed.
	Disown RemovalAction = "disown"
	// Await: the object is being deleted.
	Await RemovalAction = "await"
	// Delete: the object must be deleted.
	Delete RemovalAction = "delete"
)

// Decide returns the action that removes an entry whose object was read. orphan: the object is to outlive the
// work.
func Decide(e Entry, live *unstructured.Unstructured, owner apply.Owner, orphan bool) RemovalAction {
	refs := live.GetOwnerReferences()
	own := func(r metav1.OwnerReference) bool { return r.UID == owner.UID }
	otherWork := func(r metav1.OwnerReference) bool {
		return !own(r) && r.Kind == owner.Reference().Kind && r.APIVersion == workv1.GroupVersion.String()
	}
	switch {
	case !slices.ContainsFunc(refs, own):
		return Drop
	case orphan || slices.ContainsFunc(refs, otherWork):
		return Disown
	case e.UID != "" && e.UID != string(live.GetUID()):
		return Drop
	case live.GetDeletionTimestamp() != nil:
		return Await
	}
	return Delete
}

// Remover removes recorded objects from the cluster.
type Remover struct {
	Client kubeclient.Client
	// InFlight is the number of objects that are removed at a time. At most 1: they are removed in order.
	InFlight int
	// Guard decides which objects no work may have: they are not deleted and only lose the owner reference of the
	// work. nil: none.
	Guard *workpolicy.Guard
	// Wanted has the names of the work's present objects by uid. If the name there differs from that of an
	// entry, the object is left alone. May be nil.
	Wanted map[types.UID]workv1.ResourceIdentifier
	// Done is called with the result of every Disown and Delete, concurrently; may be nil.
	Done func(d RemovalAction, err error)
	// Saw is called for every object that was read; live is nil if the object does not exist. May be nil.
	Saw func(e Entry, live *unstructured.Unstructured)
}

// Remove removes the objects of the entries. It returns the entries that must stay: objects that still exist or
// whose state is unknown; err has the reasons. A failure does not stop the others. Admission configurations
// come first: they may reject the removal of the others. Roles and bindings wait until all others are gone:
// they may allow the agent to remove these. orphan may be nil.
func (r Remover) Remove(ctx context.Context, entries []Entry, owner apply.Owner, orphan func(Entry) bool) (remaining []Entry, err error) {
	var first, grants, others []Entry
	for _, e := range entries {
		switch {
		case e.Group == rbacv1.GroupName:
			grants = append(grants, e)
		case Admission(e.ResourceIdentifier):
			first = append(first, e)
		default:
			others = append(others, e)
		}
	}
	remaining, err = r.removeEach(ctx, first, owner, orphan)
	more, failed := r.removeEach(ctx, others, owner, orphan)
	remaining, err = append(remaining, more...), errors.Join(err, failed)
	if len(remaining) > 0 {
		return slices.Concat(remaining, grants), err
	}
	return r.removeEach(ctx, grants, owner, orphan)
}

// removal is the removal of one entry.
type removal struct {
	// stays: the object still exists, or is not known to be absent.
	stays bool
	err   error
	// read: the object was read as live.
	read bool
	live *unstructured.Unstructured
}

func (r Remover) removeEach(ctx context.Context, entries []Entry, owner apply.Owner, orphan func(Entry) bool) (remaining []Entry, err error) {
	removals := make([]removal, len(entries))
	taskgroup.Each(r.InFlight, len(entries), func(i int) {
		done := &removals[i]
		saw := func(live *unstructured.Unstructured) { done.read, done.live = true, live }
		done.stays, done.err = r.remove(ctx, entries[i], owner, orphan != nil && orphan(entries[i]), saw)
	})
	var errs []error
	for i, done := range removals {
		if done.read && r.Saw != nil {
			r.Saw(entries[i], done.live)
		}
		var others *kubeclient.SlowError // the request is queued and will be sent
		if waits := errors.As(done.err, &others) && !others.Fails; done.err != nil && !waits {
			errs = append(errs, done.err)
		}
		if done.stays || done.err != nil {
			remaining = append(remaining, entries[i])
		}
	}
	return remaining, errors.Join(errs...)
}

// remove removes the object of one entry. saw is called with the object if it was read.
func (r Remover) remove(ctx context.Context, e Entry, owner apply.Owner, orphan bool, saw func(live *unstructured.Unstructured)) (stays bool, err error) {
	ref, live, err := r.read(ctx, e)
	if notServed(err) {
		return true, nil // see notServed
	}
	if err == nil {
		saw(live)
	}
	if err != nil || live == nil {
		return false, err
	}
	if name, has := r.Wanted[live.GetUID()]; has && name != e.ResourceIdentifier {
		return false, nil
	}
	if err := r.Guard.Object(ctx, e.ResourceIdentifier, live); workpolicy.Refused(err) != nil {
		orphan = true
	} else if err != nil {
		return true, err
	}
	switch d := Decide(e, live, owner, orphan); d {
	case Drop:
		return false, nil
	case Disown:
		err := r.disown(ctx, ref, live, owner)
		return notServed(err), r.done(d, gone(err))
	case Delete:
		return true, r.done(d, r.delete(ctx, ref, live.GetUID()))
	case Await:
	}
	return true, nil
}

func (r Remover) done(d RemovalAction, err error) error {
	if r.Done != nil && !errors.As(err, new(*kubeclient.SlowError)) {
		r.Done(d, err)
	}
	return err
}

// delete requests the deletion. An object that was created again in the meantime is no error, nor is an absent
// kind: the next look decides.
func (r Remover) delete(ctx context.Context, ref kubeclient.Ref, uid types.UID) error {
	err := r.Client.Delete(ctx, ref, uid)
	if apierrors.IsConflict(err) || gone(err) == nil {
		return nil
	}
	return fmt.Errorf("delete %s: %w", ref, err)
}

// read returns the object of an entry, in a version that the server has; nil if it does not exist.
func (r Remover) read(ctx context.Context, e Entry) (kubeclient.Ref, *unstructured.Unstructured, error) {
	ref := RefOf(e)
	live, err := r.Client.Get(ctx, ref)
	if notServed(err) {
		var res kubeclient.Resource
		res, err = r.Client.Locate(ctx, schema.GroupResource{Group: e.Group, Resource: e.Resource})
		if notServed(err) {
			return ref, nil, nil // the definition is gone, and with it its objects
		}
		if err == nil {
			ref.GroupVersionResource = res.GroupVersionResource
			live, err = r.Client.Get(ctx, ref)
		}
	}
	if apierrors.IsNotFound(err) {
		return ref, nil, nil
	}
	if err != nil {
		return ref, nil, fmt.Errorf("failed to get resource %s with key %s/%s: %w", ref.GroupVersionResource, e.Namespace, e.Name, err)
	}
	return ref, live, nil
}

func (r Remover) disown(ctx context.Context, ref kubeclient.Ref, live *unstructured.Unstructured, owner apply.Owner) error {
	kept := slices.DeleteFunc(live.GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.UID == owner.UID })
	if _, err := r.Client.Patch(ctx, ref, apply.PatchOwners(live, kept), ""); err != nil {
		return fmt.Errorf("remove the owner reference from %s: %w", ref, err)
	}
	return nil
}

// Share adds an owner reference to the object of an entry that has that of owner. shared is false if the object
// has neither, or does not exist.
func (r Remover) Share(ctx context.Context, e Entry, owner, with apply.Owner) (shared bool, err error) {
	ref, live, err := r.read(ctx, e)
	if err != nil || live == nil {
		return false, err
	}
	refs := live.GetOwnerReferences()
	marked := func(by apply.Owner) bool {
		return slices.ContainsFunc(refs, func(o metav1.OwnerReference) bool { return o.UID == by.UID })
	}
	if !marked(owner) || marked(with) {
		return marked(with), nil
	}
	if _, err := r.Client.Patch(ctx, ref, apply.PatchOwners(live, append(refs, with.Reference())), ""); gone(err) != nil {
		return false, fmt.Errorf("add an owner reference to %s: %w", ref, err)
	}
	return true, nil
}

// Disown removes an owner reference from the object of an entry and changes nothing else. left: the object was
// not created again, and now belongs to no AppliedManifestWork.
func (r Remover) Disown(ctx context.Context, e Entry, owner apply.Owner) (left bool, err error) {
	ref, live, err := r.read(ctx, e)
	if err != nil || live == nil || Decide(e, live, owner, true) != Disown {
		return false, err
	}
	others := slices.ContainsFunc(live.GetOwnerReferences(), func(o metav1.OwnerReference) bool {
		return o.UID != owner.UID && o.Kind == owner.Reference().Kind && o.APIVersion == workv1.GroupVersion.String()
	})
	return !others, gone(r.disown(ctx, ref, live, owner))
}

// RefOf returns the reference of an entry's object.
func RefOf(e Entry) kubeclient.Ref {
	return kubeclient.Ref{
		GroupVersionResource: schema.GroupVersionResource{Group: e.Group, Version: e.Version, Resource: e.Resource},
		Namespace:            e.Namespace, Name: e.Name,
	}
}

// notServed reports whether the cluster does not serve a resource. This happens while a definition is removed:
//
// Scenario:
//
//	t1: the object is read.
//	t2: the last object of its kind is removed, then the definition.
//	t3: the object is to be deleted; its kind is unknown now.
//
// Result: this is no failure. It is no proof either: the resource may be served in another version, which the
// next look finds.
func notServed(err error) bool {
	return errors.As(err, new(*kubeclient.NotServedError))
}

// gone returns nil for an absent object or an absent resource.
func gone(err error) error {
	if apierrors.IsNotFound(err) || notServed(err) {
		return nil
	}
	return err
}
