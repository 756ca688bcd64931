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

	"github.com/hawser-io/hawser/pkg/agent/cluster"
)

// Scope is what one watch covers: a kind in a namespace, or a kind of the
// cluster.
type Scope struct {
	schema.GroupVersionResource
	Namespace string
}

// Config is a Watcher.
type Config struct {
	// Source returns how to list and watch a scope.
	Source func(Scope) Source
	// Changed is told an owner when one of its objects is in another state than
	// expected. It is called from many goroutines and must not block.
	Changed func(owner string)
	// Standing are resources of the cluster that are watched all the time.
	Standing map[schema.GroupVersionResource]Standing
	Log      *slog.Logger
}

// Standing hears of objects that nobody tracks. Its functions are called like
// Changed.
type Standing struct {
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
	scopes  map[Scope]*scope
	owners  map[string]map[cluster.Ref]bool
}

// scope is one watch and the objects tracked in it.
type scope struct {
	objects map[string]*object // by name
	stop    context.CancelFunc // nil while it does not run
	// synced: a first list was complete, so that an object which was not seen
	// does not exist.
	synced bool
	// denied: the agent may not, or cannot, list and watch here.
	denied bool
}

// object is one tracked object.
type object struct {
	seen     State
	known    bool // seen says how the object was last
	expected map[string]Signature
}

// New returns a Watcher that watches nothing yet.
func New(c Config) *Watcher {
	w := &Watcher{config: c, scopes: map[Scope]*scope{}, owners: map[string]map[cluster.Ref]bool{}}
	for gvr := range c.Standing {
		w.scopes[Scope{GroupVersionResource: gvr}] = &scope{objects: map[string]*object{}}
	}
	return w
}

// Run watches until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	w.mu.Lock()
	w.run = ctx
	for s, e := range w.scopes {
		w.start(s, e)
	}
	w.mu.Unlock()
	<-ctx.Done()
	w.mu.Lock()
	w.run = nil
	w.mu.Unlock()
	w.running.Wait()
	return ctx.Err()
}

// start begins the watch of a scope if Run runs. w.mu is held.
func (w *Watcher) start(s Scope, e *scope) {
	if w.run == nil || w.run.Err() != nil || e.stop != nil {
		return
	}
	ctx, cancel := context.WithCancel(w.run)
	e.stop = cancel
	f := &follower{
		w: w, source: w.config.Source(s), scope: s, entry: e,
		log: w.config.Log.With("resource", s.GroupResource().String(), "namespace", s.Namespace),
	}
	w.running.Go(func() { f.run(ctx) })
}

func scopeOf(r cluster.Ref) Scope {
	return Scope{GroupVersionResource: r.GroupVersionResource, Namespace: r.Namespace}
}

// Track replaces what an owner tracks. An object that was tracked before keeps
// what is known of it. To miss nothing, an owner tracks an object before it
// reads it, and says what it expects after.
func (w *Watcher) Track(owner string, expected map[cluster.Ref]Signature) {
	w.mu.Lock()
	defer w.mu.Unlock()
	old := w.owners[owner]
	refs := make(map[cluster.Ref]bool, len(expected))
	for ref, signature := range expected {
		refs[ref] = true
		w.object(ref).expected[owner] = signature
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
}

// object returns the entry of an object, and starts its watch if it is the
// first there. w.mu is held.
func (w *Watcher) object(ref cluster.Ref) *object {
	s := scopeOf(ref)
	e := w.scopes[s]
	if e == nil {
		e = &scope{objects: map[string]*object{}}
		w.scopes[s] = e
		w.start(s, e)
	}
	o := e.objects[ref.Name]
	if o == nil {
		o = &object{expected: map[string]Signature{}}
		e.objects[ref.Name] = o
	}
	return o
}

// drop forgets that an owner tracks an object, and ends a watch that nobody
// needs. w.mu is held.
func (w *Watcher) drop(owner string, ref cluster.Ref) {
	s := scopeOf(ref)
	e := w.scopes[s]
	o := e.objects[ref.Name]
	delete(o.expected, owner)
	if len(o.expected) > 0 {
		return
	}
	delete(e.objects, ref.Name)
	if _, standing := w.config.Standing[s.GroupVersionResource]; len(e.objects) > 0 || standing {
		return
	}
	delete(w.scopes, s)
	if e.stop != nil {
		e.stop()
	}
}

// Seen returns the state in which a tracked object was last seen, the zero State
// if it is absent; ok is false if there is no telling.
func (w *Watcher) Seen(ref cluster.Ref) (s State, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.scopes[scopeOf(ref)]
	if e == nil || !e.synced {
		return State{}, false
	}
	o := e.objects[ref.Name]
	if o == nil || !o.known {
		return State{}, false
	}
	return o.seen, true
}

// Blind reports whether the owner tracks objects that cannot be watched.
func (w *Watcher) Blind(owner string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for ref := range w.owners[owner] {
		if w.scopes[scopeOf(ref)].denied {
			return true
		}
	}
	return false
}

// Counts returns the number of watches, and how many of them are denied.
func (w *Watcher) Counts() (watches, denied int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.scopes {
		if e.denied {
			denied++
		}
	}
	return len(w.scopes), denied
}

// Ready returns nil while the standing watches have seen everything.
func (w *Watcher) Ready() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for gvr := range w.config.Standing {
		if !w.scopes[Scope{GroupVersionResource: gvr}].synced {
			return errors.New(gvr.Resource + " have not been listed yet")
		}
	}
	return nil
}

// tracked returns the names tracked in a scope, all of them absent until shown
// otherwise.
func (w *Watcher) tracked(e *scope) map[string]State {
	w.mu.Lock()
	defer w.mu.Unlock()
	states := make(map[string]State, len(e.objects))
	for name := range e.objects {
		states[name] = State{}
	}
	return states
}

// tracks reports whether anybody tracks an object.
func (w *Watcher) tracks(e *scope, name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return e.objects[name] != nil
}

// listed takes the states that a complete list showed.
func (w *Watcher) listed(e *scope, states map[string]State) {
	w.mu.Lock()
	e.synced, e.denied = true, false
	owners := map[string]bool{}
	for name, state := range states {
		e.take(name, state, owners)
	}
	w.mu.Unlock()
	w.wake(owners)
}

// saw takes the state of one object.
func (w *Watcher) saw(e *scope, name string, s State) {
	owners := map[string]bool{}
	w.mu.Lock()
	e.take(name, s, owners)
	w.mu.Unlock()
	w.wake(owners)
}

// take records a state and adds who did not expect it to owners.
func (e *scope) take(name string, s State, owners map[string]bool) {
	o := e.objects[name]
	if o == nil || o.known && o.seen == s {
		return
	}
	o.seen, o.known = s, true
	for owner, expected := range o.expected {
		if !s.Is(expected) {
			owners[owner] = true
		}
	}
}

func (w *Watcher) wake(owners map[string]bool) {
	for _, owner := range slices.Sorted(maps.Keys(owners)) {
		w.config.Changed(owner)
	}
}

// deny makes owners look for themselves. They are woken, for it is their turn.
func (w *Watcher) deny(e *scope) {
	w.mu.Lock()
	owners := map[string]bool{}
	if !e.denied {
		for _, o := range e.objects {
			for owner := range o.expected {
				owners[owner] = true
			}
		}
	}
	e.synced, e.denied = false, true
	w.mu.Unlock()
	w.wake(owners)
}
