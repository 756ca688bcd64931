package drift

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"

	"github.com/hawser-io/hawser/internal/history"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// Scope is the range of one watch: a kind in a namespace, or, with an empty namespace, all objects of a kind.
type Scope struct {
	schema.GroupVersionResource
	Namespace string
}

// DefaultMaxWatches is used if Config.MaxWatches is 0. It is enough for the kinds of a cluster with one watch
// each.
const DefaultMaxWatches = 200

// Config configures a Watcher.
type Config struct {
	// Source returns the Source of a scope.
	Source func(Scope) Source
	// Changed is called for an owner when one of its objects is in an unexpected state. It is called from many
	// goroutines and must not block.
	Changed func(owner string)
	// Permanent are resources that are watched all the time.
	Permanent map[schema.GroupVersionResource]Permanent
	// History is the history of the server; nil: the Watcher keeps its own, from its watches.
	History *history.History
	// MaxWatches bounds the concurrent watches. Those of Permanent count, but always run. 0 means
	// DefaultMaxWatches.
	MaxWatches int
	Log        *slog.Logger
}

// Permanent has callbacks for untracked objects of a resource. They are called like Changed.
type Permanent struct {
	// Seen is called for an untracked object that exists, when it is found and when it changes. It returns the
	// owner to notify; ok is false if there is none.
	Seen func(*metav1.PartialObjectMetadata) (owner string, ok bool)
	// Gone is called for a deleted object, tracked or not, unless there was no watch at that time. May be nil.
	Gone func(name string)
	// Unsure is called when changes may have been missed: after each complete list, and when the resource cannot be
	// watched. May be nil.
	Unsure func()
}

// Metadata returns a Config.Source for a real cluster.
func Metadata(c metadata.Interface) func(Scope) Source {
	return func(s Scope) Source {
		if s.Namespace == "" {
			return c.Resource(s.GroupVersionResource)
		}
		return c.Resource(s.GroupVersionResource).Namespace(s.Namespace)
	}
}

// Watcher runs the watches. Its methods may be called concurrently, and before, during and after Run.
type Watcher struct {
	config Config

	mu      sync.Mutex
	run     context.Context //nolint:containedctx // of Run, for the watches that Track starts
	running sync.WaitGroup
	kinds   map[schema.GroupVersionResource]*kind
	owners  map[string]map[kubeclient.Ref]bool
	own     OwnWrites
	feeds   int // number of watches
	// clock counts the calls of Track, to order them with lists and events.
	clock uint64
	// waiting has the spaces that wait for a watch because of the limit.
	waiting map[*space]bool
}

// kind is a resource with tracked objects, or a permanent one.
type kind struct {
	schema.GroupVersionResource
	permanent bool
	spaces    map[string]*space // by namespace; "" has the cluster-scoped objects
	// wide covers all namespaces, or is about to; nil if there is none. A permanent kind always has one.
	wide *feed
}

// space is a namespace in which objects of a kind are tracked.
type space struct {
	kind      *kind
	namespace string
	objects   map[string]*object // by name
	feed      *feed              // its own watch; nil if it has none
}

// object is one tracked object.
type object struct {
	seen     ObservedObject
	known    bool                   // seen is the last state of the object
	at       uint64                 // when it was seen: see Watcher.clock
	expected map[string]expectation // by owner
}

// expectation is the last signature that an owner expects, and its time: see Watcher.clock.
type expectation struct {
	Signature
	at uint64
}

// New returns a Watcher without running watches.
func New(c Config) *Watcher {
	c.MaxWatches = cmp.Or(c.MaxWatches, DefaultMaxWatches)
	if c.History == nil {
		c.History = history.New(history.Config{Log: c.Log})
	}
	w := &Watcher{
		config: c, kinds: map[schema.GroupVersionResource]*kind{}, owners: map[string]map[kubeclient.Ref]bool{}, waiting: map[*space]bool{},
	}
	for gvr := range c.Permanent {
		k := &kind{GroupVersionResource: gvr, permanent: true, spaces: map[string]*space{}}
		w.kinds[gvr] = k
		k.wide = w.begin(k, nil)
		k.wide.leads = true
	}
	return w
}

// Run watches until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	w.mu.Lock()
	w.run = ctx
	for _, k := range w.kinds {
		for _, f := range k.feeds() {
			w.start(f)
		}
	}
	w.mu.Unlock()
	<-ctx.Done()
	w.mu.Lock()
	w.run = nil
	w.mu.Unlock()
	w.running.Wait()
	return ctx.Err()
}

// Track replaces the objects that an owner tracks. An object that was tracked before keeps its known state. To
// miss no change, an owner tracks an object before it reads it, and sets the expected state after the read.
func (w *Watcher) Track(owner string, expected map[kubeclient.Ref]Signature) {
	w.wake(w.track(owner, expected))
}

// track returns the other owners that must be notified.
func (w *Watcher) track(owner string, expected map[kubeclient.Ref]Signature) (others map[string]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clock++
	others = map[string]bool{}
	old := w.owners[owner]
	refs := make(map[kubeclient.Ref]bool, len(expected))
	for ref, signature := range expected {
		refs[ref] = true
		w.expect(owner, ref, signature, others)
	}
	for ref := range old {
		if !refs[ref] {
			w.drop(owner, ref)
		}
	}
	if len(refs) == 0 {
		delete(w.owners, owner)
	} else {
		w.owners[owner] = refs
	}
	return others
}

// expect records the expected state of an object and makes sure that it is watched. w.mu is held.
func (w *Watcher) expect(owner string, ref kubeclient.Ref, signature Signature, others map[string]bool) {
	k := w.kinds[ref.GroupVersionResource]
	if k == nil {
		k = &kind{GroupVersionResource: ref.GroupVersionResource, spaces: map[string]*space{}}
		w.kinds[ref.GroupVersionResource] = k
	}
	s := k.spaces[ref.Namespace]
	if s == nil {
		s = &space{kind: k, namespace: ref.Namespace, objects: map[string]*object{}}
		k.spaces[ref.Namespace] = s
		w.place(s)
	}
	o := s.objects[ref.Name]
	if o == nil {
		o = &object{expected: map[string]expectation{}}
		s.objects[ref.Name] = o
	}
	before := o.expected[owner]
	o.expected[owner] = expectation{signature, w.clock}
	// The list did not contain the object, and the owner tracked it after the list and has read or written it
	// since. No change was seen, so it is as the owner expects. Pending changes arrive with the watch.
	if f := s.cover(); !o.known && signature != Unknown && signature != before.Signature && f != nil && f.synced && before.at > f.since {
		w.observe(ref, o, ObservedObject{Content: signature, Exact: signature}, others)
	}
}

// drop untracks an object of an owner, and ends a watch that is no longer needed. w.mu is held.
func (w *Watcher) drop(owner string, ref kubeclient.Ref) {
	k := w.kinds[ref.GroupVersionResource]
	s := k.spaces[ref.Namespace]
	o := s.objects[ref.Name]
	delete(o.expected, owner)
	if len(o.expected) > 0 {
		return
	}
	delete(s.objects, ref.Name)
	if len(s.objects) > 0 {
		return
	}
	delete(k.spaces, ref.Namespace)
	w.unwait(s)
	w.end(&s.feed)
	if len(k.spaces) == 0 && !k.permanent {
		w.end(&k.wide)
		delete(w.kinds, k.GroupVersionResource)
	}
	w.admit()
}

// find returns a tracked object and its space, nil if it is not tracked. w.mu is held.
func (w *Watcher) find(ref kubeclient.Ref) (*space, *object) {
	if k := w.kinds[ref.GroupVersionResource]; k != nil {
		if s := k.spaces[ref.Namespace]; s != nil {
			return s, s.objects[ref.Name]
		}
	}
	return nil, nil
}

// LastSeen returns the state in which a tracked object was last seen, the zero ObservedObject if it is absent. ok
// is false if the state is unknown.
func (w *Watcher) LastSeen(ref kubeclient.Ref) (s ObservedObject, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	space, o := w.find(ref)
	if o == nil || !o.known {
		return ObservedObject{}, false
	}
	if f := space.cover(); f == nil || !f.synced {
		return ObservedObject{}, false
	}
	return o.seen, true
}

// Unwatched returns 0 if all objects of the owner are watched, or about to be. Otherwise it returns the number
// of unwatched objects of all owners, for the budget of reads.
func (w *Watcher) Unwatched(owner string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	for ref := range w.owners[owner] {
		if s, _ := w.find(ref); w.unwatched(s) {
			n := w.count()
			return n.DeniedObjects + n.WaitingObjects
		}
	}
	return 0
}

// unwatched reports whether a space is not watched, and not about to be. w.mu is held.
func (w *Watcher) unwatched(s *space) bool {
	f := s.cover()
	return f != nil && f.denied || w.waiting[s]
}

// Counts has the counts of a Watcher.
type Counts struct {
	// Watches is the number of watches, including attempts. Denied is the number of those that the cluster denies
	// and that no other watch replaces.
	Watches, Denied int
	// DeniedObjects is the number of tracked objects whose watch is denied. WaitingObjects is the number of those
	// without a watch because of the limit.
	DeniedObjects, WaitingObjects int
}

// Counts returns the current counts.
func (w *Watcher) Counts() Counts {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count()
}

func (w *Watcher) count() Counts {
	n := Counts{Watches: w.feeds}
	for _, k := range w.kinds {
		for _, f := range k.feeds() {
			if f.denied && (f.space != nil || k.permanent) {
				n.Denied++
			}
		}
		for _, s := range k.spaces {
			if f := s.cover(); f != nil && f.denied {
				n.DeniedObjects += len(s.objects)
			}
		}
	}
	for s := range w.waiting {
		n.WaitingObjects += len(s.objects)
	}
	return n
}

// Ready returns nil once the permanent watches have listed everything.
func (w *Watcher) Ready() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for gvr := range w.config.Permanent {
		if !w.kinds[gvr].wide.synced {
			return errors.New(gvr.Resource + " have not been listed yet")
		}
	}
	return nil
}

// observe records a state and adds the owners that do not expect it to owners. If the state is unchanged,
// owners that knew it are not notified again. An owner that expects another state since then is notified. w.mu
// is held.
func (w *Watcher) observe(ref kubeclient.Ref, o *object, s ObservedObject, owners map[string]bool) {
	same := o.known && o.seen == s
	for owner, expected := range o.expected {
		switch {
		case s.Is(expected.Signature):
			w.own.AsExpected(owner, ref)
		case (!same || expected.at > o.at) && w.own.Observe(owner, ref, s):
			owners[owner] = true
		}
	}
	o.seen, o.known, o.at = s, true, w.clock
}

// Begin begins the writes of an owner. Until End it is not notified. States that it reports with RecordWrite, by
// their exact signature, are no changes.
func (w *Watcher) Begin(owner string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.own.Begin(owner)
}

// RecordWrite records the exact state after an owner's write of an object; see Begin.
func (w *Watcher) RecordWrite(owner string, ref kubeclient.Ref, s Signature) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.own.RecordWrite(owner, ref, s)
}

// End ends the writes after Begin.
func (w *Watcher) End(owner string) {
	w.mu.Lock()
	report := w.own.End(owner, func(ref kubeclient.Ref) (s TrackingState) {
		if _, o := w.find(ref); o != nil {
			var e expectation
			e, s.Tracked = o.expected[owner]
			s.Expected, s.Known, s.Seen = e.Signature, o.known, o.seen
		}
		return s
	})
	w.mu.Unlock()
	if report {
		w.config.Changed(owner)
	}
}

func (w *Watcher) wake(owners map[string]bool) {
	for _, owner := range slices.Sorted(maps.Keys(owners)) {
		w.config.Changed(owner)
	}
}

// owned adds all owners that track an object.
func (o *object) owned(owners map[string]bool) {
	for owner := range o.expected {
		owners[owner] = true
	}
}

// owned adds all owners that track an object in a space.
func (s *space) owned(owners map[string]bool) {
	for _, o := range s.objects {
		o.owned(owners)
	}
}
