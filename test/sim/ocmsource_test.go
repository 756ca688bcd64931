package sim

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/transport"
)

const shopName = "shop"

// ocmSource is a small model of a source built with OCM's sdk-go. Ids follow from names, so a recreated work
// has the same id as before. The source repeats what was not accepted. It keeps a deleted work until the
// cluster reported it as gone. Its memory outlives restarts.
type ocmSource struct {
	w      *world
	link   *link
	works  map[string]*ocmWork // by cluster/name
	gone   map[string]*ocmWork // deleted, by cluster/name; the last of each
	epochs map[string]int      // by cluster/name
	// highest is the highest version of all epochs of a work, by cluster/name.
	highest map[string]int64
}

type ocmWork struct {
	o        *workv1.ManifestWork // never modified
	reported *workv1.ManifestWork // the last accepted version; nil if there is none, or if it is unknown
	epoch    string
	accepted bool // some version was accepted
	tried    bool // some version may have been accepted
	lived    bool // some version was accepted, by any store
	dirty    bool
	busy     bool
	tryAt    time.Time
	// confirmed: the cluster reported that the work is gone. The report may be about the previous work, so the
	// deletion must be accepted too.
	confirmed bool
	// before is the previous work of the name. After a loss of the broker's store its deletion is published first.
	// It replaces this work until the deletion is accepted; after is then this work.
	before, after *ocmWork

	sequence string
	hash     string
	status   workv1.ManifestWorkStatus
}

func newShop(w *world) *ocmSource {
	s := &ocmSource{w: w, works: map[string]*ocmWork{}, gone: map[string]*ocmWork{}, epochs: map[string]int{}, highest: map[string]int64{}}
	s.link = newLink(w, identity.Identity{Role: identity.Source, Name: shopName}, s)
	return s
}

func (s *ocmSource) keys() []string { return slices.Sorted(maps.Keys(s.works)) }

// create creates a work. It returns nil if a work of that name exists and is not being deleted.
func (s *ocmSource) create(cluster, name string, bits uint32) *ocmWork {
	key := cluster + "/" + name
	old := s.works[key]
	if old != nil && (old.o.DeletionTimestamp == nil || !old.accepted || old.dirty || old.busy) {
		return nil
	}
	s.epochs[key]++
	id := codec.ResourceID(shopName, codec.ManifestBundles.Resource, cluster, name)
	w := &ocmWork{epoch: fmt.Sprintf("%s#%d", id, s.epochs[key]), dirty: true, before: old}
	if old == nil {
		w.before = s.gone[key]
	}
	w.o = &workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{
		Namespace: cluster, Name: name, UID: types.UID(id), Generation: 1, Labels: map[string]string{"l": "0"},
	}}
	w.o.Spec.Workload.Manifests = manifests(w.epoch, "shop-"+name, 1, bits)
	s.works[key] = w
	s.w.oracle.bornAtSource(id)
	return w
}

func (s *ocmSource) change(w *ocmWork, f func(*workv1.ManifestWork)) {
	w.o = w.o.DeepCopy()
	f(w.o)
	s.highest[keyOf(w.o)] = max(w.o.Generation, s.highest[keyOf(w.o)])
	w.dirty, w.tryAt = true, time.Time{}
}

func (s *ocmSource) update(w *ocmWork, bits uint32) {
	s.change(w, func(o *workv1.ManifestWork) {
		o.Generation++
		o.Spec.Workload.Manifests = manifests(w.epoch, "shop-"+o.Name, o.Generation, bits)
	})
}

func (s *ocmSource) orphan(w *ocmWork) {
	s.change(w, func(o *workv1.ManifestWork) {
		o.Generation++
		o.Spec.DeleteOption = otherOption(o.Spec.DeleteOption)
		s.w.oracle.option(w.epoch, o)
	})
}

func (s *ocmSource) label(w *ocmWork) {
	s.change(w, func(o *workv1.ManifestWork) {
		n, _ := strconv.Atoi(o.Labels["l"])
		o.Labels = map[string]string{"l": strconv.Itoa(n + 1)}
	})
}

func (s *ocmSource) delete(w *ocmWork) {
	s.w.oracle.deletedAtSource(w.epoch, w.o)
	if w.reported == nil || w.busy || !orphans(w.reported.Spec.DeleteOption) {
		s.w.oracle.mustStay[root(w.epoch)] = false // its deletion carries no data, so no agent received the option
	}
	s.change(w, func(o *workv1.ManifestWork) {
		now := metav1.NewTime(time.Now())
		o.DeletionTimestamp = &now
	})
	if !w.tried { // it was never published, and the previous work may still be in deletion
		key := w.o.Namespace + "/" + w.o.Name
		delete(s.works, key)
		if w.before != nil {
			s.works[key] = w.before
			s.tidy(key, w.before)
		}
	}
}

// hurry changes a work and deletes it at once. Only another work may change in between. The broker commits, and
// has no time for anything else.
func (s *ocmSource) hurry(w *ocmWork, b uint32) {
	s.rush(w)
	if b%3 == 0 {
		s.update(w, b/3)
	} else {
		s.orphan(w)
	}
	s.rush(w)
	for _, key := range s.keys() {
		if o := s.works[key]; b%2 == 0 && o != w && o.o.DeletionTimestamp == nil {
			s.label(o)
			s.rush(o)
			break
		}
	}
	if key := keyOf(w.o); s.works[key] == w {
		s.delete(w)
		s.rush(w)
	}
}

// rush publishes a work before anything else happens, if that is possible.
func (s *ocmSource) rush(w *ocmWork) {
	order := rand.New(rand.NewPCG(s.w.seed, 9))
	for range 40 {
		list := slices.DeleteFunc(s.w.steps(), func(p step) bool {
			return p.actor != "shop" && p.actor != s.link.name && (p.actor != "broker" || p.what != "commit")
		})
		if len(list) == 0 || !w.dirty && !w.busy || s.w.broken != nil {
			return
		}
		s.w.perform(list[order.IntN(len(list))])
	}
}

// recreate deletes a work, performs a few steps, and creates one of its name. The new work soon has a version
// as high.
func (s *ocmSource) recreate(a, b uint32) string {
	keys := s.keys()
	if len(keys) == 0 {
		return ""
	}
	key := keys[int(a)%len(keys)]
	w := s.works[key]
	if w.o.DeletionTimestamp == nil {
		s.delete(w)
		run(s.w, 23, a)
	}
	now := s.create(w.o.Namespace, w.o.Name, b)
	if now == nil || s.w.broken != nil {
		return ""
	}
	for range w.o.Generation + int64(b%2) {
		s.update(now, b)
	}
	run(s.w, 23, b)
	return now.epoch
}

// Hello implements session.Handler. It returns an empty Hello.
func (s *ocmSource) Hello() transport.Hello { return transport.Hello{} }

// Subscribed implements session.Handler.
func (s *ocmSource) Subscribed(context.Context, transport.Accepted) ([]codec.Event, error) {
	list := []codec.StatusHash{}
	for _, key := range s.keys() {
		list = append(list, codec.StatusHash{ResourceID: string(s.works[key].o.UID), StatusHash: s.works[key].hash})
	}
	e, err := codec.NewStatusResyncRequest(codec.ResyncParams{
		ID: s.w.newID(), Time: time.Now(), Source: shopName, DataType: codec.ManifestBundles,
	}, list)
	return []codec.Event{e}, err
}

// Disconnected implements session.Handler.
func (s *ocmSource) Disconnected(error) {}

// Handle implements session.Handler.
func (s *ocmSource) Handle(_ context.Context, e codec.Event) error {
	r, err := manifestwork.DecodeStatus(e)
	if err != nil {
		s.w.fail("I4", "the shop was sent a status that it cannot read: %v", err)
		return nil
	}
	for _, key := range s.keys() {
		w := s.works[key]
		if string(w.o.UID) != r.ResourceID {
			continue
		}
		if r.Deleted {
			if w.o.DeletionTimestamp != nil {
				w.confirmed = true
				s.tidy(key, w)
			} else if w.before != nil {
				w.before.confirmed = true
			}
			return nil
		}
		if newer, err := codec.CompareSequence(w.sequence, r.SequenceID); err == nil && newer {
			w.sequence, w.hash, w.status = r.SequenceID, r.Hash, r.Status
		}
	}
	return nil
}

// tidy forgets a work whose deletion is accepted and confirmed.
func (s *ocmSource) tidy(key string, w *ocmWork) {
	if w.confirmed && !w.dirty && !w.busy && s.works[key] == w {
		delete(s.works, key)
		s.gone[key] = w
	}
}

// repeat publishes all works again, including deletions: the broker may have forgotten them. The broker may
// also have an earlier epoch of a work again. So a deletion gets the highest version of all its epochs.
func (s *ocmSource) repeat() {
	for key, w := range s.gone {
		if s.works[key] == nil {
			s.works[key] = w
		}
	}
	clear(s.gone)
	for key, w := range s.works {
		if w.before != nil {
			w.before.after, w.before.dirty, w.before.tryAt = w, true, time.Time{}
			s.works[key] = w.before
			s.again(w)
		}
	}
	for _, w := range s.works {
		s.again(w)
	}
}

// again marks a work as unpublished, so that it is published again.
func (s *ocmSource) again(w *ocmWork) {
	// Its deletions carry no spec. What the broker received about that is lost.
	w.reported = nil
	if w.o.DeletionTimestamp != nil {
		w.o = w.o.DeepCopy()
		w.o.Generation = max(w.o.Generation, s.highest[keyOf(w.o)])
	}
	s.w.oracle.mustStay[root(w.epoch)] = false
	w.dirty, w.confirmed, w.tryAt = w.dirty || w.tried, false, time.Time{}
	if w.o.DeletionTimestamp == nil {
		w.accepted = false // a create_request
	}
}

func (s *ocmSource) steps(list []step) []step {
	for _, key := range s.keys() {
		w := s.works[key]
		if w.dirty && !w.busy && s.link.conn != nil && !w.tryAt.After(time.Now()) && !s.tooEarly(w) {
			list = append(list, step{"shop", "publishes", key, func() { s.publish(key, w) }})
		}
	}
	return list
}

// tooEarly reports whether a deletion has to wait. After a loss of the broker's store, an OCM source must
// delete nothing before the agents have reconnected. Otherwise the broker would confirm the deletion without
// any cluster. No component would then know of a work that an OCM agent forgot.
func (s *ocmSource) tooEarly(w *ocmWork) bool {
	_, known := s.w.store().Subscribed(codec.ManifestBundles, w.o.Namespace)
	return s.w.oracle.forgot && w.o.DeletionTimestamp != nil && !known
}

func (s *ocmSource) next() (first time.Time) {
	for _, w := range s.works {
		if w.dirty && !w.busy && s.link.conn != nil && !s.tooEarly(w) && (first.IsZero() || w.tryAt.Before(first)) {
			first = w.tryAt
		}
	}
	return first
}

func (s *ocmSource) publish(key string, w *ocmWork) {
	action := codec.UpdateRequest
	switch {
	case w.o.DeletionTimestamp != nil:
		action = codec.DeleteRequest
	case !w.accepted:
		action = codec.CreateRequest
	}
	e, err := manifestwork.EncodeSpec(w.o, manifestwork.SpecParams{ID: s.w.newID(), Now: time.Now(), Source: shopName, Action: action})
	if err != nil {
		panic(err)
	}
	w.busy, w.dirty, w.tried = true, false, true
	o := w.o
	s.w.send(s.link, e, "spec "+key, func(r transport.Receipt, err error) {
		w.busy = false
		s.w.note("  outcome %q, error %v", r.Outcome, err)
		switch {
		case err == nil:
			w.accepted, w.lived = true, true
			if o.DeletionTimestamp == nil {
				w.reported = o
			}
			if w.after != nil {
				s.works[key], w.after = w.after, nil
			}
			s.tidy(key, w)
		case transport.Retryable(err):
			w.reported = nil // unknown whether the broker accepted it
			w.dirty, w.tryAt = true, time.Now().Add(time.Second)
		case w.lived && (s.w.hub.works[key] == nil || s.w.hub.works[key].DeletionTimestamp != nil):
			// After a loss of the broker's store: the name will be free again.
			w.dirty, w.tryAt = true, time.Now().Add(10*time.Second)
		case !w.accepted: // the name is taken: the call that made it failed
			delete(s.works, key)
			s.w.forgetRepeats(s.link, string(o.UID))
		default:
			s.w.fail("I1", "an update of %s was refused: %v", key, err)
		}
	})
}
