package drift

import (
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

// Scope is what one watch covers: a kind in a namespace, or, with an empty
// namespace, all objects of a kind.
type Scope struct {
	schema.GroupVersionResource
	Namespace string
}

// DefaultMaxWatches is the bound of Config.MaxWatches if it is 0: enough for the
// kinds of a cluster, each with a watch of its own.
const DefaultMaxWatches = 200

// Config is a Watcher.
type Config struct {
	// Source returns how to list and watch a scope.
	Source func(Scope) Source
	// Changed is told an owner when one of its objects is in another state than
	// expected. It is called from many goroutines and must not block.
	Changed func(owner string)
	// Permanent are resources of the cluster that are watched all the time.
	Permanent map[schema.GroupVersionResource]Permanent
	// History is that of the server; nil: what the watches of this Watcher show of it.
	History *history.History
	// MaxWatches bounds the watches at one time; those of Standing count, and are
	// there in any case. 0 means DefaultMaxWatches.
	MaxWatches int
	Log        *slog.Logger
}

// Permanent hears of objects that nobody tracks. Its functions are called like
// Changed.
type Permanent struct {
	// Seen is told of an object that exists, when it is found and when it
	// changes. It names the owner that is to be told; ok is false if nobody is.
	Seen func(*metav1.PartialObjectMetadata) (owner string, ok bool)
	// Gone is told of an object that was deleted, tracked or not, unless that
	// happened while there was no watch. May be nil.
	Gone func(name string)
	// Unsure is told that changes may have been missed: after each complete list,
	// and when it turns out that the resource cannot be watched. May be nil.
	Unsure func()
}

// Metadata returns the Source of a Config on a real cluster.
func Metadata(c metadata.Interface) func(Scope) Source {
	return func(s Scope) Source {
		if s.Namespace == "" {
			return c.Resource(s.GroupVersionResource)
		}
		return c.Resource(s.GroupVersionResource).Namespace(s.Namespace)
	}
}

// Watcher keeps the watches. Its methods may be called concurrently, before,
// while and after Run runs.
type Watcher struct {
	config Config

	mu      sync.Mutex
	run     context.Context //nolint:containedctx // of Run, for the watches that Track starts
	running sync.WaitGroup
	kinds   map[schema.GroupVersionResource]*kind
	owners  map[string]map[kubeclient.Ref]bool
	own     Own
	feeds   int // how many exist
	// clock counts the calls of Track, so that it is known what was before what.
	clock uint64
	// waiting are the spaces for which there is no room.
	waiting map[*space]bool
}

// kind is one resource of which something is tracked, or that stands.
type kind struct {
	schema.GroupVersionResource
	permanent bool
	spaces    map[string]*space // by namespace; "" has the objects of the cluster
	// wide covers all namespaces, or is about to; nil if there is none. A kind that
	// stands always has one.
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
	known    bool                   // seen says how the object was last
	at       uint64                 // when it was seen: see Watcher.clock
	expected map[string]expectation // by owner
}

// expectation is what an owner said last, and when: see Watcher.clock.
type expectation struct {
	Signature
	at uint64
}

// New returns a Watcher that watches nothing yet.
func New(c Config) *Watcher {
	if c.MaxWatches == 0 {
		c.MaxWatches = DefaultMaxWatches
	}
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

// Track replaces what an owner tracks. An object that was tracked before keeps
// what is known of it. To miss nothing, an owner tracks an object before it
// reads it, and says what it expects, which is what it read, after.
func (w *Watcher) Track(owner string, expected map[kubeclient.Ref]Signature) {
	w.wake(w.track(owner, expected))
}

// track returns whom of the other owners that concerns.
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

// expect notes what an owner expects of an object, and sees to it that it is
// watched. w.mu is held.
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
	// Nothing was seen to happen to an object that the list did not tell of, and
	// that the owner tracked after the list and has read or written since: so it is
	// as the owner says. What is still on its way comes with the watch.
	if f := s.cover(); !o.known && signature != Unknown && signature != before.Signature && f != nil && f.synced && before.at > f.since {
		w.observe(ref, o, ObservedObject{Content: signature, Exact: signature}, others)
	}
}

// drop forgets that an owner tracks an object, and ends a watch that nobody
// needs. w.mu is held.
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

// find returns a tracked object and its space, nil if nobody tracks it. w.mu is
// held.
func (w *Watcher) find(ref kubeclient.Ref) (*space, *object) {
	if k := w.kinds[ref.GroupVersionResource]; k != nil {
		if s := k.spaces[ref.Namespace]; s != nil {
			return s, s.objects[ref.Name]
		}
	}
	return nil, nil
}

// Seen returns the state in which a tracked object was last seen, the zero State
// if it is absent; ok is false if there is no telling.
func (w *Watcher) Seen(ref kubeclient.Ref) (s ObservedObject, ok bool) {
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

// Unwatched returns 0 if everything that the owner tracks is watched, or about to
// be. Otherwise it is the number of objects, of all owners, that nobody watches:
// how many others have to be looked at besides those of this owner.
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

// unwatched reports whether a space is not watched, and not about to be. w.mu is
// held.
func (w *Watcher) unwatched(s *space) bool {
	f := s.cover()
	return f != nil && f.denied || w.waiting[s]
}

// Counts is how a Watcher is.
type Counts struct {
	// Watches is how many there are, or are tried; Denied those of them that the
	// cluster does not allow, and in whose place there are no others.
	Watches, Denied int
	// DeniedObjects are tracked where a watch is denied, WaitingObjects where none
	// is tried, because there are too many.
	DeniedObjects, WaitingObjects int
}

// Counts returns the numbers of this moment.
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

// Ready returns nil once the standing watches have seen everything.
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

// observe records a state and adds who did not expect it to owners. If it is the
// state that was seen before, those who knew are not told again; but there may be
// some who have found another one since, and now it is as it was. w.mu is held.
func (w *Watcher) observe(ref kubeclient.Ref, o *object, s ObservedObject, owners map[string]bool) {
	same := o.known && o.seen == s
	for owner, expected := range o.expected {
		switch {
		case s.Is(expected.Signature):
			w.own.AsExpected(owner, ref)
		case (!same || expected.at > o.at) && w.own.News(owner, ref, s):
			owners[owner] = true
		}
	}
	o.seen, o.known, o.at = s, true, w.clock
}

// Begin begins the writes of an owner: until End it is told of nothing, and what it wrote itself,
// which Wrote says by its exact signature, is no news.
func (w *Watcher) Begin(owner string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.own.Begin(owner)
}

// Wrote says in which state a write of the owner left an object; see Begin.
func (w *Watcher) Wrote(owner string, ref kubeclient.Ref, s Signature) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.own.Wrote(owner, ref, s)
}

// End ends what Begin began.
func (w *Watcher) End(owner string) {
	w.mu.Lock()
	report := w.own.End(owner, func(ref kubeclient.Ref) (s Sight) {
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

// owned adds everybody who tracks an object.
func (o *object) owned(owners map[string]bool) {
	for owner := range o.expected {
		owners[owner] = true
	}
}

// owned adds everybody who tracks something in a space.
func (s *space) owned(owners map[string]bool) {
	for _, o := range s.objects {
		o.owned(owners)
	}
}
