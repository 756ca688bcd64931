package drift

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// manySpaces is the number of namespaces up to which a kind has one watch per namespace. With one more, all
// namespaces are watched together. That delivers events of untracked objects too, but needs only one watch.
const manySpaces = 8

// feed is the state of one watch in the Watcher. Guarded by Watcher.mu.
type feed struct {
	kind  *kind
	space *space // nil if it is for all namespaces
	stop  context.CancelFunc
	// ended: the watch is no longer needed, and its reports are ignored.
	ended bool
	// synced: a first list was complete. An object that was tracked then and was not in it does not exist.
	synced bool
	since  uint64 // the clock at the last list
	// denied: the agent may not, or cannot, list and watch here.
	denied bool

	// These fields are for watches of all namespaces only. leads: the watch covers every namespace. Before that,
	// and after a denial, namespaces have their own watches. The watch of a permanent kind leads from the start.
	// failed: the watch does not lead, and its last attempt failed.
	leads, failed bool
}

func (f *feed) scope() Scope {
	s := Scope{GroupVersionResource: f.kind.GroupVersionResource}
	if f.space != nil {
		s.Namespace = f.space.namespace
	}
	return s
}

// key names an object of one kind.
type key struct{ namespace, name string }

// key returns the key of a feed's object.
func (f *feed) key(m metav1.Object) key {
	if f.space != nil {
		return key{f.space.namespace, m.GetName()}
	}
	return key{m.GetNamespace(), m.GetName()}
}

// object returns the tracked object of a key; nil if there is none.
func (f *feed) object(k key) *object {
	if s := f.kind.spaces[k.namespace]; s != nil {
		return s.objects[k.name]
	}
	return nil
}

// ref returns the reference of the object with a key.
func (f *feed) ref(k key) kubeclient.Ref {
	return kubeclient.Ref{GroupVersionResource: f.kind.GroupVersionResource, Namespace: k.namespace, Name: k.name}
}

// feeds returns the watches of a kind.
func (k *kind) feeds() []*feed {
	var fs []*feed
	if k.wide != nil {
		fs = append(fs, k.wide)
	}
	for _, s := range k.spaces {
		if s.feed != nil {
			fs = append(fs, s.feed)
		}
	}
	return fs
}

// cover returns the watch that decides about a space; nil if there is none.
func (s *space) cover() *feed {
	if f := s.kind.wide; f != nil && (f.leads || s.namespace == "") {
		return f
	}
	return s.feed
}

func (w *Watcher) full() bool { return w.feeds >= w.config.MaxWatches }

// place starts a watch of a space, unless another one covers it or is about to, or the limit is reached. w.mu
// is held.
func (w *Watcher) place(s *space) {
	k := s.kind
	if s.cover() != nil {
		return
	}
	if n := len(k.spaces); k.wide == nil && (n > manySpaces || n > 1 && w.full()) {
		w.widen(k)
	}
	switch {
	case k.wide != nil && !k.wide.failed: // the watch of all namespaces will cover this space too
	case w.full():
		w.wait(s)
	default:
		w.unwait(s)
		s.feed = w.begin(k, s)
	}
}

// widen tries to watch all namespaces of a kind together. If the limit is reached, it first ends a watch of
// that kind. w.mu is held.
func (w *Watcher) widen(k *kind) {
	for _, s := range k.spaces {
		if !w.full() {
			break
		}
		w.end(&s.feed)
	}
	if w.full() {
		return
	}
	k.wide = w.begin(k, nil)
	for _, s := range k.spaces {
		w.unwait(s)
	}
}

// wait records that a space waits for a watch because of the limit. w.mu is held.
func (w *Watcher) wait(s *space) {
	if len(w.waiting) == 0 {
		w.config.Log.Warn("too many watches on the cluster: some objects are read at the status sync interval instead", "watches", w.feeds)
	}
	w.waiting[s] = true
}

// unwait records that a space no longer waits. w.mu is held.
func (w *Watcher) unwait(s *space) {
	if !w.waiting[s] {
		return
	}
	delete(w.waiting, s)
	if len(w.waiting) == 0 {
		w.config.Log.Info("the number of watches on the cluster is below the limit again")
	}
}

// admit starts watches of waiting spaces, up to the limit. w.mu is held.
func (w *Watcher) admit() {
	for s := range w.waiting {
		if w.full() {
			return
		}
		w.place(s)
	}
}

// begin creates a watch, for all namespaces if s is nil. w.mu is held.
func (w *Watcher) begin(k *kind, s *space) *feed {
	f := &feed{kind: k, space: s}
	w.feeds++
	w.start(f)
	return f
}

// start starts the follower of a watch while Run runs. w.mu is held.
func (w *Watcher) start(f *feed) {
	if w.run == nil || w.run.Err() != nil || f.stop != nil {
		return
	}
	ctx, cancel := context.WithCancel(w.run)
	f.stop = cancel
	scope := f.scope()
	follower := &follower{
		w: w, feed: f, source: w.config.Source(scope), resource: scope.GroupVersionResource,
		log: w.config.Log.With("resource", scope.GroupResource().String(), "namespace", scope.Namespace),
	}
	w.running.Go(func() { follower.run(ctx) })
}

// end ends a watch, if there is one. w.mu is held.
func (w *Watcher) end(f **feed) {
	if *f == nil {
		return
	}
	(*f).ended = true
	if stop := (*f).stop; stop != nil {
		stop()
	}
	*f = nil
	w.feeds--
}

// sighting is the state of a tracked object in a list; absent until the list shows it.
type sighting struct {
	object *object
	state  ObservedObject
}

// each calls visit for every tracked object in the scope of the feed. Watcher.mu is held.
func (f *feed) each(visit func(key, *object)) {
	for _, s := range f.kind.spaces {
		if f.space != nil && f.space != s {
			continue
		}
		for name, o := range s.objects {
			visit(key{s.namespace, name}, o)
		}
	}
}

// tracked returns the tracked objects in the scope of a feed.
func (w *Watcher) tracked(f *feed) map[key]sighting {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := map[key]sighting{}
	f.each(func(k key, o *object) { seen[k] = sighting{object: o} })
	return seen
}

// spot adds the tracked objects of one page of a list.
func (w *Watcher) spot(f *feed, page []metav1.PartialObjectMetadata, seen map[key]sighting) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range page {
		k := f.key(&page[i])
		if o := f.object(k); o != nil {
			seen[k] = sighting{o, StateOf(f.kind.GroupVersionResource, &page[i])}
		}
	}
}

// tracks reports whether an object is tracked.
func (w *Watcher) tracks(f *feed, k key) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return f.object(k) != nil
}

// listed processes a complete list, from which a watch continues. An object that was tracked during the list
// and is not in it may have been read before the list. Its owners are woken to read it again.
func (w *Watcher) listed(f *feed, seen map[key]sighting) {
	owners := map[string]bool{}
	w.mu.Lock()
	if !f.ended {
		f.synced, f.denied, f.since = true, false, w.clock
		if f.space == nil && !f.leads {
			w.lead(f)
		}
		f.each(func(k key, o *object) {
			if s := seen[k]; s.object == o {
				w.observe(f.ref(k), o, s.state, owners)
				return
			}
			o.known = false
			o.owned(owners)
		})
		w.admit()
	}
	w.mu.Unlock()
	w.wake(owners)
}

// forget drops the states seen by a feed, until it is listed again. A resourceVersion of the former history
// proves nothing about a write in this one.
func (w *Watcher) forget(f *feed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f.ended || f.space == nil && !f.leads {
		return
	}
	f.synced, w.own = false, OwnWrites{}
	f.each(func(_ key, o *object) { o.known = false })
}

// lead lets one watch replace those of all spaces. Their latest reports may be older or newer than the list. The
// list decides; later changes arrive with the watch. w.mu is held.
func (w *Watcher) lead(f *feed) {
	f.leads, f.failed = true, false
	for _, s := range f.kind.spaces {
		w.end(&s.feed)
		w.unwait(s)
	}
}

// saw records the state of one object.
func (w *Watcher) saw(f *feed, k key, s ObservedObject) {
	owners := map[string]bool{}
	w.mu.Lock()
	if o := f.object(k); o != nil && !f.ended {
		w.observe(f.ref(k), o, s, owners)
	}
	w.mu.Unlock()
	w.wake(owners)
}

// deny records that a watch is denied, and wakes the owners, which must now read the objects themselves. If it
// was for all namespaces, each namespace gets its own watch.
func (w *Watcher) deny(f *feed) {
	owners := map[string]bool{}
	w.mu.Lock()
	switch {
	case f.ended:
	case f.space == nil:
		f.synced, f.denied, f.leads = false, true, false
		w.fallBack(f, owners)
	default:
		if !f.denied {
			f.space.owned(owners)
		}
		f.synced, f.denied = false, true
	}
	w.mu.Unlock()
	w.wake(owners)
}

// falter records that a list or a watch failed. If a watch of all namespaces does not lead yet, its spaces stop
// waiting for it.
func (w *Watcher) falter(f *feed) {
	owners := map[string]bool{}
	w.mu.Lock()
	if f.space == nil && !f.leads && !f.failed && !f.ended {
		w.fallBack(f, owners)
	}
	w.mu.Unlock()
	w.wake(owners)
}

// fallBack starts watches for the spaces of a kind. It adds the owners of spaces beyond the limit to owners.
// w.mu is held.
func (w *Watcher) fallBack(f *feed, owners map[string]bool) {
	f.failed = true
	for _, s := range f.kind.spaces {
		waited := w.waiting[s]
		if w.place(s); w.waiting[s] && !waited {
			s.owned(owners)
		}
	}
}
