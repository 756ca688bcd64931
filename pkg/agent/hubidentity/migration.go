package hubidentity

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// ErrNothing means that there is nothing to hand over.
var ErrNothing = errors.New("there is nothing to move")

// Migration hands the objects of one hub over to another, as requested by the owner of the cluster. It deletes
// no object. It writes only owner references to objects, and removes only AppliedManifestWorks that were
// replaced. It may be interrupted and run again.
type Migration struct {
	Registry
	// Abandon removes an AppliedManifestWork with this uid, but none of the objects that it owns.
	Abandon func(ctx context.Context, ref kubeclient.Ref, uid types.UID) error
	// Printf prints each step for the operator.
	Printf func(format string, args ...any) error
}

// Move hands over the objects of the hub with identity from to the hub with identity to. from may also be the
// hash of an unknown identity. If both are equal, Move gives the identity to a broker whose attempt to use it
// was rejected. That is the broker at this address, or the only one. The error is ErrNothing if there is nothing to
// move.
func (m Migration) Move(ctx context.Context, from, to, broker string) error {
	if from == to {
		return m.admit(ctx, to, broker)
	}
	fromHash, toHash := hashOf(from), appliedwork.HubHash(to)
	names, agentID, err := m.recordsOf(ctx, fromHash, toHash)
	if err != nil {
		return err
	}
	book, err := m.Claims(ctx)
	if err != nil {
		return err
	}
	if _, claimed := book[fromHash]; !claimed && len(names) == 0 {
		return fmt.Errorf("%w: hub %s has no AppliedManifestWork on this cluster, and its identity is not claimed", ErrNothing, from)
	}
	// The claim is moved first, so that no agent starts again under the old identity in the meantime.
	if err := m.moveClaim(ctx, fromHash, to); err != nil {
		return err
	}
	var errs []error
	moved := 0
	for _, name := range names {
		if err := m.moveRecord(ctx, name, toHash, agentID); err != nil {
			errs = append(errs, fmt.Errorf("AppliedManifestWork %s: %w", name, err))
			continue
		}
		moved++
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%d of %d AppliedManifestWorks were handed over; run this again for the rest: %w", moved, len(names), err)
	}
	return m.Printf("hub %s has taken over from hub %s: %d AppliedManifestWorks\n", to, from, moved)
}

func hashOf(identity string) string {
	if IsHash(identity) {
		return identity
	}
	return appliedwork.HubHash(identity)
}

// moveClaim moves the claim of one identity to another, unless that has one.
func (m Migration) moveClaim(ctx context.Context, fromHash, to string) error {
	toHash := appliedwork.HubHash(to)
	var reported []any
	err := m.change(ctx, func(b Claims) (Claims, bool, error) {
		old, claimed := b[fromHash]
		if reported = nil; !claimed {
			return b, false, nil
		}
		next := maps.Clone(b)
		delete(next, fromHash)
		c, has := next[toHash]
		if !has {
			c = Claim{Identity: to, Since: m.Now(), BrokerRef: old.BrokerRef, Rejected: old.Rejected}
		}
		c.Rejected = slices.DeleteFunc(slices.Clone(c.Rejected), func(r Rejected) bool { return r.Identity == old.Identity || r.Identity == to })
		next[toHash] = c
		reported = []any{old.Identity, to, c.Broker}
		return next, true, nil
	})
	if err != nil || reported == nil {
		return err
	}
	return m.Printf("identity %s is now %s, through broker %s\n", reported...)
}

// admit gives an identity to a broker whose attempt to use it was rejected.
func (m Migration) admit(ctx context.Context, identity, broker string) error {
	hash := appliedwork.HubHash(identity)
	var before, after BrokerRef
	err := m.change(ctx, func(b Claims) (Claims, bool, error) {
		c := b[hash]
		var waiting []Rejected
		for _, r := range c.Rejected {
			if r.Identity == identity && (broker == "" || r.Broker == broker) {
				waiting = append(waiting, r)
			}
		}
		if len(waiting) == 0 {
			return b, false, fmt.Errorf("%w: no broker was rejected for the identity %s", ErrNothing, identity)
		}
		last := waiting[len(waiting)-1]
		if i := slices.IndexFunc(waiting, func(r Rejected) bool { return r.Broker != last.Broker }); i >= 0 {
			return b, false, fmt.Errorf("several brokers were rejected for the identity %s, among them %s and %s: name one with --to-broker", identity, waiting[i].Broker, last.Broker)
		}
		before, after = c.BrokerRef, last.BrokerRef
		c.BrokerRef, c.Since = after, m.Now()
		c.Rejected = slices.DeleteFunc(slices.Clone(c.Rejected), func(r Rejected) bool { return r.Identity == identity })
		return b.with(hash, c), true, nil
	})
	if err != nil {
		return err
	}
	return m.Printf("identity %s and the objects applied under it move from broker %s to broker %s\n", identity, before.Broker, after.Broker)
}

// recordsOf lists the AppliedManifestWorks of a hub. It also returns the common agent id of those of the hub
// with the hash other; "" if there is none or several.
func (m Migration) recordsOf(ctx context.Context, hash, other string) (names []string, agentID string, err error) {
	sample := ""
	err = m.each(ctx, func(o *metav1.PartialObjectMetadata) {
		switch h, _, ok := Split(o.Name); {
		case !ok:
		case h == hash:
			names = append(names, o.Name)
		case h == other:
			sample = o.Name
		}
	})
	if err != nil || sample == "" {
		return names, "", err
	}
	rec, err := m.store(other).Load(ctx, sample)
	if err != nil || rec == nil {
		return names, "", err
	}
	return names, rec.AgentID(), nil
}

func (m Migration) store(hash string) appliedwork.Store {
	return appliedwork.Store{Objects: m.Objects, HubHash: hash}
}

// moveRecord hands over one AppliedManifestWork. The order makes an interruption, or running agents, harmless
// at any step:
//
// Scenario:
//
//	t1: the AppliedManifestWork of the other hub is created.
//	t2: its owner reference is added to the objects.
//	t3: the objects are added to its list; this fails if it was deleted in the meantime.
//	t4: the owner reference of the old one is removed from the objects.
//	t5: the old one is removed.
//
// Result: until t3 the objects have the old owner reference; afterwards the new owner lists them.
func (m Migration) moveRecord(ctx context.Context, name, toHash, agentID string) error {
	_, work, _ := Split(name)
	store := m.store(toHash)
	from, err := store.Load(ctx, name)
	if err != nil || from == nil {
		return err
	}
	to, err := store.Load(ctx, appliedwork.Name(toHash, work))
	if err == nil && to == nil {
		to, err = m.copyRecord(ctx, from, toHash, agentID)
	}
	if err != nil {
		return err
	}
	if to.Deleting() {
		return errors.New("the AppliedManifestWork that is to have its objects is being deleted: wait until it is gone")
	}
	if from.WorkID() == to.WorkID() {
		if to, err = m.hand(ctx, from, to); err != nil {
			return err
		}
	}
	left, err := m.disown(ctx, from, to)
	if err == nil {
		err = m.removeRecord(ctx, from)
	}
	if err != nil {
		return err
	}
	if err := m.Printf("work %s: %d objects belong to %s\n", work, len(to.Entries()), to.Owner().Name); err != nil {
		return err
	}
	if len(left) == 0 {
		return nil
	}
	return m.Printf("work %s: these objects have no owner any more and stay unchanged: %s\n", work, strings.Join(left, ", "))
}

// hand performs t2 and t3 for the objects that only the old AppliedManifestWork has.
func (m Migration) hand(ctx context.Context, from, to *appliedwork.Record) (*appliedwork.Record, error) {
	remover := appliedwork.Remover{Client: m.Objects}
	list := to.Entries()
	has := map[workv1.ResourceIdentifier]bool{}
	for _, e := range list {
		has[e.ResourceIdentifier] = true
	}
	for _, e := range from.Entries() {
		if has[e.ResourceIdentifier] {
			continue
		}
		shared, err := remover.Share(ctx, e, from.Owner(), to.Owner())
		if err != nil {
			return nil, err
		}
		if shared {
			list = append(list, e)
		}
	}
	return appliedwork.Store{Objects: m.Objects}.SetEntries(ctx, to, list)
}

// disown performs t4. It returns the objects without an owner after it.
func (m Migration) disown(ctx context.Context, from, to *appliedwork.Record) (left []string, err error) {
	remover := appliedwork.Remover{Client: m.Objects}
	listed := to.Entries()
	for _, e := range from.Entries() {
		alone, err := remover.Disown(ctx, e, from.Owner())
		if err != nil {
			return nil, err
		}
		if alone && !slices.ContainsFunc(listed, func(o appliedwork.Entry) bool { return o.ResourceIdentifier == e.ResourceIdentifier }) {
			left = append(left, appliedwork.RefOf(e).String())
		}
	}
	return left, nil
}

// copyRecord creates the AppliedManifestWork of the other hub for the same work, without objects.
func (m Migration) copyRecord(ctx context.Context, from *appliedwork.Record, toHash, agentID string) (*appliedwork.Record, error) {
	fromHash, work, _ := Split(from.Owner().Name)
	if agentID == "" {
		// An agent with a configured id keeps it. The default id is the hash.
		if agentID = from.AgentID(); agentID == fromHash || agentID == "" {
			agentID = toHash
		}
	}
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": workv1.GroupVersion.String(), "kind": "AppliedManifestWork",
		"spec": map[string]any{"hubHash": toHash, "agentID": agentID, "manifestWorkName": work},
	}}
	name := appliedwork.Name(toHash, work)
	o.SetName(name)
	o.SetLabels(from.Metadata().GetLabels())
	o.SetAnnotations(from.Metadata().GetAnnotations())
	o.SetFinalizers([]string{workv1.AppliedManifestWorkFinalizer})
	if _, err := m.Objects.Create(ctx, appliedwork.Resource, o); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	to, err := m.store(toHash).Load(ctx, name)
	if err == nil && to == nil {
		err = errors.New("the AppliedManifestWork that is to have its objects was deleted at once")
	}
	return to, err
}

// removeRecord removes an AppliedManifestWork without objects.
func (m Migration) removeRecord(ctx context.Context, rec *appliedwork.Record) error {
	store := appliedwork.Store{Objects: m.Objects}
	err := m.Abandon(ctx, appliedwork.Ref(rec.Owner().Name), rec.Owner().UID)
	if err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	for range attempts {
		now, err := store.Load(ctx, rec.Owner().Name)
		if err != nil || now == nil || now.Owner().UID != rec.Owner().UID {
			return err
		}
		if _, err = store.RemoveFinalizer(ctx, now); err == nil || !apierrors.IsConflict(err) {
			return err
		}
	}
	return errors.New("another client keeps writing to it; try again")
}
