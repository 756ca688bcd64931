package drift

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// manySpaces is in how many namespaces a kind has watches of their own. One more,
// and it is tried to watch all namespaces at once: that costs the events of
// objects that nobody tracks, and one watch.
const manySpaces = 8

// feed is one watch, as the Watcher sees it. Guarded by Watcher.mu.
type feed struct {
	kind  *kind
	space *space // nil if it is for all namespaces
	stop  context.CancelFunc
	// ended: nobody wants it any more, its reports do not count.
	ended bool
	// synced: a first list was complete, so that an object that was tracked then
	// and was not seen does not exist.
	synced bool
	since  uint64 // the clock at the last list
	// denied: the agent may not, or cannot, list and watch here.
	denied bool

	// For all namespaces only. leads: it covers every space. Before, and after it
	// was denied, namespaces are covered by their own watches; that of a kind that
	// stands leads from the beginning. failed: it does not lead, and its last
	// attempt to do so failed.
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

// key returns under which key a feed's object is tracked, if it is.
func (f *feed) key(m metav1.Object) key {
	if f.space != nil {
		return key{f.space.namespace, m.GetName()}
	}
	return key{m.GetNamespace(), m.GetName()}
}

// object returns what is tracked under a key; nil if nothing is.
func (f *feed) object(k key) *object {
	if s := f.kind.spaces[k.namespace]; s != nil {
		return s.objects[k.name]
	}
	return nil
}

// ref names the object that is tracked under a key.
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

// cover returns the watch whose word counts for a space; nil if there is none.
func (s *space) cover() *feed {
	if f := s.kind.wide; f != nil && (f.leads || s.namespace == "") {
		return f
	}
	return s.feed
}

func (w *Watcher) full() bool { return w.feeds >= w.config.MaxWatches }

// place gives a space a watch of its own, if nothing else covers it or is about
// to, and there is room. w.mu is held.
func (w *Watcher) place(s *space) {
	k := s.kind
	if s.cover() != nil {
		return
	}
	if n := len(k.spaces); k.wide == nil && (n > manySpaces || n > 1 && w.full()) {
		w.widen(k)
	}
	switch {
	case k.wide != nil && !k.wide.failed: // it is about to cover this too
	case w.full():
		w.wait(s)
	default:
		w.unwait(s)
		s.feed = w.begin(k, s)
	}
}

// widen tries to watch all namespaces of a kind at once. Where there is no room,
// one of its own watches makes some. w.mu is held.
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

// wait notes that there is no room for a space. w.mu is held.
func (w *Watcher) wait(s *space) {
	if len(w.waiting) == 0 {
		w.config.Log.Warn("too many watches on the cluster: some objects are looked at again at the status sync interval instead", "watches", w.feeds)
	}
	w.waiting[s] = true
}

// unwait notes that a space does not wait any more. w.mu is held.
func (w *Watcher) unwait(s *space) {
	if !w.waiting[s] {
		return
	}
	delete(w.waiting, s)
	if len(w.waiting) == 0 {
		w.config.Log.Info("there is room for all watches on the cluster again")
	}
}

// admit gives watches to spaces that wait, as long as there is room. w.mu is
// held.
func (w *Watcher) admit() {
	for s := range w.waiting {
		if w.full() {
			return
		}
		w.place(s)
	}
}

// begin returns a new watch, for all namespaces if s is nil. w.mu is held.
func (w *Watcher) begin(k *kind, s *space) *feed {
	f := &feed{kind: k, space: s}
	w.feeds++
	w.start(f)
	return f
}

// start lets a watch follow its scope if Run runs. w.mu is held.
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

// sighting is a tracked object in a list, absent until it is found.
type sighting struct {
	object *object
	state  ObservedObject
}

// each calls f for every object that is tracked where a feed is. Watcher.mu is
// held.
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

// tracked returns what is tracked where a feed is.
func (w *Watcher) tracked(f *feed) map[key]sighting {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := map[key]sighting{}
	f.each(func(k key, o *object) { seen[k] = sighting{object: o} })
	return seen
}

// spot adds those objects of a page of a list that are tracked.
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

// tracks reports whether anybody tracks an object.
func (w *Watcher) tracks(f *feed, k key) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return f.object(k) != nil
}

// listed takes what a complete list showed, after which a watch goes on. Owners
// of what came to be tracked during the list, and is not in it, may have read
// that before the list was made: they are woken to look again.
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

// forget drops what was seen where a feed is, until it is listed again. A resource version of
// the former history says nothing of a write in this one.
func (w *Watcher) forget(f *feed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f.ended || f.space == nil && !f.leads {
		return
	}
	f.synced, w.own = false, Own{}
	f.each(func(_ key, o *object) { o.known = false })
}

// lead lets one watch take the place of those of all spaces. What the others
// reported meanwhile may be before or after the list: what is in the list counts,
// later changes come with the watch. w.mu is held.
func (w *Watcher) lead(f *feed) {
	f.leads, f.failed = true, false
	for _, s := range f.kind.spaces {
		w.end(&s.feed)
		w.unwait(s)
	}
}

// saw takes the state of one object.
func (w *Watcher) saw(f *feed, k key, s ObservedObject) {
	owners := map[string]bool{}
	w.mu.Lock()
	if o := f.object(k); o != nil && !f.ended {
		w.observe(f.ref(k), o, s, owners)
	}
	w.mu.Unlock()
	w.wake(owners)
}

// deny makes owners look for themselves, and wakes them, for it is their turn;
// in place of a watch for all namespaces each gets its own.
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

// falter is told that a list or a watch failed. A watch for all namespaces that
// does not lead yet is not waited for.
func (w *Watcher) falter(f *feed) {
	owners := map[string]bool{}
	w.mu.Lock()
	if f.space == nil && !f.leads && !f.failed && !f.ended {
		w.fallBack(f, owners)
	}
	w.mu.Unlock()
	w.wake(owners)
}

// fallBack gives the spaces of a kind watches of their own, and adds the owners
// of those for which there is no room. w.mu is held.
func (w *Watcher) fallBack(f *feed, owners map[string]bool) {
	f.failed = true
	for _, s := range f.kind.spaces {
		waited := w.waiting[s]
		if w.place(s); w.waiting[s] && !waited {
			s.owned(owners)
		}
	}
}
