package drift

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// api is the metadata of a whole cluster for synctest bubbles. Lists are pages of a snapshot. Watches continue
// from a version and lag behind.
type api struct {
	lag  func(Scope) time.Duration // delays answers and events
	page int

	mu        sync.Mutex
	version   int
	objects   map[kubeclient.Ref]*metav1.PartialObjectMetadata
	born      map[kubeclient.Ref]time.Time
	history   []event
	forgotten int // events up to this version are no longer available
	streams   map[*apiStream]bool
	denied    map[Scope]bool
	undefined map[schema.GroupVersionResource]bool
	failing   bool // every request fails
	snapshots map[snapshot][]metav1.PartialObjectMetadata
	lists     map[Scope]int
}

type event struct {
	version int
	ref     kubeclient.Ref
	watch.Event
}

type snapshot struct {
	Scope
	version string
}

func newAPI() *api {
	return &api{
		lag: func(Scope) time.Duration { return 0 }, page: 500, version: 100, objects: map[kubeclient.Ref]*metav1.PartialObjectMetadata{}, born: map[kubeclient.Ref]time.Time{},
		streams: map[*apiStream]bool{}, denied: map[Scope]bool{}, undefined: map[schema.GroupVersionResource]bool{}, snapshots: map[snapshot][]metav1.PartialObjectMetadata{}, lists: map[Scope]int{},
	}
}

// put creates or changes an object.
func (a *api) put(ref kubeclient.Ref) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	typ, o := watch.Added, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: ref.Name, Namespace: ref.Namespace, UID: types.UID("u" + strconv.Itoa(a.version)),
	}}
	if old := a.objects[ref]; old != nil {
		typ, o = watch.Modified, old.DeepCopy()
	} else {
		a.born[ref] = time.Now()
	}
	o.ResourceVersion = strconv.Itoa(a.version)
	a.objects[ref] = o
	a.send(typ, ref, o)
}

func (a *api) remove(ref kubeclient.Ref) {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.objects[ref]
	if o == nil {
		return
	}
	a.version++
	delete(a.objects, ref)
	delete(a.born, ref)
	o = o.DeepCopy()
	o.ResourceVersion = strconv.Itoa(a.version)
	a.send(watch.Deleted, ref, o)
}

func (a *api) send(typ watch.EventType, ref kubeclient.Ref, o *metav1.PartialObjectMetadata) {
	e := event{a.version, ref, watch.Event{Type: typ, Object: o}}
	a.history = append(a.history, e)
	for s := range a.streams {
		s.offer(e)
	}
}

// cut ends every watch. With forget it also drops the history, so no watch can continue.
func (a *api) cut(forget bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if forget {
		a.history, a.forgotten = nil, a.version
	}
	for s := range a.streams {
		s.end()
	}
}

// state returns the current state of an object.
func (a *api) state(ref kubeclient.Ref) ObservedObject {
	a.mu.Lock()
	defer a.mu.Unlock()
	if o := a.objects[ref]; o != nil {
		return StateOf(ref.GroupVersionResource, o)
	}
	return ObservedObject{}
}

func (a *api) open() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.streams)
}

func (a *api) scopes() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var names []string
	for s := range a.streams {
		names = append(names, s.scope.Resource+"/"+s.scope.Namespace)
	}
	slices.Sort(names)
	return names
}

func (a *api) forbid(s Scope, denied bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.denied[s] = denied
}

func (a *api) undefine(r schema.GroupVersionResource) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.undefined[r] = true
}

func (a *api) fail(on bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failing = on
}

// refused returns the error of a request in this scope; nil if it succeeds.
func (a *api) refused(s Scope) error {
	switch {
	case a.failing:
		return errors.New("connection refused")
	case a.undefined[s.GroupVersionResource]:
		return apierrors.NewGenericServerResponse(http.StatusNotFound, "list", s.GroupResource(), "", "", 0, true)
	case a.denied[s]:
		return apierrors.NewForbidden(s.GroupResource(), "", errors.New("no rule"))
	}
	return nil
}

func (a *api) source(s Scope) Source { return apiSource{a, s} }

type apiSource struct {
	*api
	scope Scope
}

func (s apiSource) covers(ref kubeclient.Ref) bool {
	return ref.GroupVersionResource == s.scope.GroupVersionResource && (s.scope.Namespace == "" || s.scope.Namespace == ref.Namespace)
}

func (s apiSource) List(ctx context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	if d := s.lag(s.scope); d > 0 {
		taskgroup.Sleep(ctx, d)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.Continue == "" {
		s.lists[s.scope]++
	}
	if err := s.refused(s.scope); err != nil {
		return nil, err
	}
	version, from := strconv.Itoa(s.version), 0
	if o.Continue == "" {
		var items []metav1.PartialObjectMetadata
		for ref, m := range s.objects {
			if s.covers(ref) {
				items = append(items, *m.DeepCopy())
			}
		}
		slices.SortFunc(items, func(a, b metav1.PartialObjectMetadata) int {
			return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
		})
		s.snapshots[snapshot{s.scope, version}] = items
	} else {
		token := strings.Split(o.Continue, ":")
		version = token[0]
		from, _ = strconv.Atoi(token[1]) // token[1] is an offset from an earlier page
		if v, _ := strconv.Atoi(version); v < s.forgotten {
			return nil, apierrors.NewResourceExpired("too old")
		}
	}
	items := s.snapshots[snapshot{s.scope, version}]
	l := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: version}}
	to := min(from+s.page, len(items))
	if l.Items = items[from:to]; to < len(items) {
		l.Continue = version + ":" + strconv.Itoa(to)
	}
	return l, nil
}

func (s apiSource) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if d := s.lag(s.scope); d > 0 {
		taskgroup.Sleep(ctx, d)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refused(s.scope); err != nil {
		return nil, err
	}
	since, err := strconv.Atoi(o.ResourceVersion)
	if err != nil {
		return nil, err
	}
	if since < s.forgotten {
		return nil, apierrors.NewResourceExpired("too old")
	}
	w := &apiStream{apiSource: s, out: make(chan watch.Event), stop: make(chan struct{}), more: make(chan struct{}, 1)}
	for _, e := range s.history {
		if e.version > since {
			w.offer(e)
		}
	}
	s.streams[w] = true
	go w.send()
	return w, nil
}

// apiStream is one watch. Events wait in pending, and each takes the lag of the
// scope.
type apiStream struct {
	apiSource
	out     chan watch.Event
	stop    chan struct{}
	more    chan struct{}
	pending []watch.Event // guarded by api.mu, as ended is
	ended   bool
}

func (w *apiStream) offer(e event) {
	if w.covers(e.ref) {
		w.pending = append(w.pending, watch.Event{Type: e.Type, Object: e.Object.DeepCopyObject()})
		select {
		case w.more <- struct{}{}:
		default:
		}
	}
}

func (w *apiStream) send() {
	defer close(w.out)
	for {
		select {
		case <-w.stop:
			return
		case <-w.more:
		}
		for {
			w.mu.Lock()
			if len(w.pending) == 0 {
				w.mu.Unlock()
				break
			}
			e := w.pending[0]
			w.pending = w.pending[1:]
			w.mu.Unlock()
			select {
			case <-time.After(w.lag(w.scope)):
			case <-w.stop:
				return
			}
			select {
			case w.out <- e:
			case <-w.stop:
				return
			}
		}
	}
}

func (w *apiStream) end() {
	if !w.ended {
		w.ended = true
		close(w.stop)
		delete(w.streams, w)
	}
}

// Stop implements watch.Interface.
func (w *apiStream) Stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.end()
}

// ResultChan implements watch.Interface.
func (w *apiStream) ResultChan() <-chan watch.Event { return w.out }
