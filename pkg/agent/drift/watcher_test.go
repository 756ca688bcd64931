package drift

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/hawser-io/hawser/internal/history"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	records    = schema.GroupVersionResource{Group: "work.open-cluster-management.io", Version: "v1", Resource: "appliedmanifestworks"}
)

func ref(name string) kubeclient.Ref {
	return kubeclient.Ref{GroupVersionResource: configMaps, Namespace: "default", Name: name}
}

// server is the metadata of one scope on a server.
type server struct {
	namespace string // of its objects
	mu        sync.Mutex
	version   int
	objects   map[string]*metav1.PartialObjectMetadata
	streams   []*stream
	fail      error // of list and watch
	page      int64 // of lists; 0: as requested
	lists     int
	looks     int      // lists of one object
	watches   []string // the versions at which watches started
	between   func()   // called between two pages
}

type stream struct {
	*watch.RaceFreeFakeWatcher
	server *server
}

func (s *stream) Stop() {
	s.server.mu.Lock()
	s.server.streams = slices.DeleteFunc(s.server.streams, func(o *stream) bool { return o == s })
	s.server.mu.Unlock()
	s.RaceFreeFakeWatcher.Stop()
}

func newServer() *server {
	return &server{namespace: "default", version: 100, objects: map[string]*metav1.PartialObjectMetadata{}}
}

// put creates or changes an object and returns its signature.
func (s *server) put(name string) Signature {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.namespace, UID: "u-" + "1", ResourceVersion: strconv.Itoa(s.version)}}
	typ := watch.Added
	if _, has := s.objects[name]; has {
		typ = watch.Modified
	}
	s.objects[name] = o
	s.send(typ, o)
	return SignatureOf(configMaps, o)
}

func (s *server) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	o := s.objects[name].DeepCopy()
	delete(s.objects, name)
	o.ResourceVersion = strconv.Itoa(s.version)
	s.send(watch.Deleted, o)
}

func (s *server) bookmark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.send(watch.Bookmark, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{ResourceVersion: strconv.Itoa(s.version)}})
}

func (s *server) send(typ watch.EventType, o *metav1.PartialObjectMetadata) {
	for _, w := range s.streams {
		w.Action(typ, o.DeepCopy())
	}
}

// cut ends every watch, with err unless it is nil.
func (s *server) cut(err *apierrors.StatusError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.streams {
		if err != nil {
			w.Error(&err.ErrStatus)
		}
		w.RaceFreeFakeWatcher.Stop()
	}
	s.streams = nil
}

func (s *server) open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.streams)
}

func (s *server) deny(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = err
}

func (s *server) List(_ context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lists++; o.Limit == 1 {
		s.lists--
		s.looks++
	}
	if s.fail != nil {
		return nil, s.fail
	}
	limit := o.Limit
	if s.page > 0 {
		limit = s.page
	}
	var names []string
	for n := range s.objects {
		if n > o.Continue {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	l := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)}}
	for i, n := range names {
		if int64(i) == limit {
			l.Continue = names[i-1]
			break
		}
		l.Items = append(l.Items, *s.objects[n].DeepCopy())
	}
	if l.Continue != "" && s.between != nil {
		s.mu.Unlock()
		s.between()
		s.mu.Lock()
	}
	return l, nil
}

func (s *server) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches = append(s.watches, o.ResourceVersion)
	if s.fail != nil {
		return nil, s.fail
	}
	w := &stream{RaceFreeFakeWatcher: watch.NewRaceFreeFake(), server: s}
	s.streams = append(s.streams, w)
	return w, nil
}

// rig is a running Watcher on one server for all scopes.
type rig struct {
	t       *testing.T
	server  *server
	records *server // of the standing watch; nil: server
	*Watcher
	unsure    atomic.Int64 // number of calls of Unsure
	dropped   atomic.Bool  // an own write is missing
	readBacks atomic.Int64 // number of reads of own writes
	history   *history.History
	mu        sync.Mutex
	gone      []string
	woken     []string
}

// inBubble runs f in a bubble with a running Watcher.
func inBubble(t *testing.T, s *server, before func(*rig), f func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, server: s}
		r.history = history.New(history.Config{Log: slog.New(slog.DiscardHandler), OwnWrites: func(context.Context) error {
			if r.readBacks.Add(1); r.dropped.Swap(false) {
				present, _ := r.history.Present()
				r.history.End(present, "test")
			}
			return nil
		}})
		r.Watcher = New(Config{
			History: r.history,
			Source: func(scope Scope) Source {
				if scope.GroupVersionResource == records && r.records != nil {
					return r.records
				}
				return s
			},
			Changed: func(owner string) {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.woken = append(r.woken, owner)
			},
			Permanent: map[schema.GroupVersionResource]Permanent{records: {
				Seen: func(m *metav1.PartialObjectMetadata) (string, bool) { return "record " + m.Name, m.Name == "deleting" },
				Gone: func(name string) {
					r.mu.Lock()
					defer r.mu.Unlock()
					r.gone = append(r.gone, name)
				},
				Unsure: func() { r.unsure.Add(1) },
			}},
			Log: slog.New(slog.DiscardHandler),
		})
		if before != nil {
			before(r)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		synctest.Wait()
		f(r)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
		if n := s.open(); n != 0 {
			t.Errorf("%d watches are still open", n)
		}
	})
}

func (r *rig) expectWoken(want ...string) {
	r.t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.woken, want) {
		r.t.Fatalf("woken %q, want %q", r.woken, want)
	}
	r.woken = nil
}

func (r *rig) expectSeen(name string, want Signature, wantOK bool) {
	r.t.Helper()
	synctest.Wait()
	if got, ok := r.LastSeen(ref(name)); !got.Is(want) || ok != wantOK {
		r.t.Fatalf("%s: seen %q, %v; want %q, %v", name, got, ok, want, wantOK)
	}
}

func track(names map[string]Signature) map[kubeclient.Ref]Signature {
	m := map[kubeclient.Ref]Signature{}
	for n, s := range names {
		m[ref(n)] = s
	}
	return m
}

func TestWatcher_WakesOwnersOnUnexpectedChange(t *testing.T) {
	s := newServer()
	a := s.put("a")
	inBubble(t, s, func(r *rig) { r.Track("w1", track(map[string]Signature{"a": a})) }, func(r *rig) {
		r.expectWoken()
		r.expectSeen("a", a, true)

		r.Track("w2", track(map[string]Signature{"a": a, "b": Unknown}))
		r.expectSeen("b", Absent, false) // tracked since the list: its state is unknown
		changed := s.put("a")
		r.expectWoken("w1", "w2")
		r.Track("w1", track(map[string]Signature{"a": changed}))
		r.expectSeen("a", changed, true)
		s.put("other")
		r.expectWoken()
		b := s.put("b")
		r.expectWoken("w2")
		r.expectSeen("b", b, true)
		s.remove("b")
		r.expectWoken("w2")
		r.expectSeen("b", Absent, true)
	})
}

func TestWatcher_ExpectedOwnWritesWakeNoWork(t *testing.T) {
	s := newServer()
	inBubble(t, s, func(r *rig) { r.Track("w1", track(map[string]Signature{"a": Absent})) }, func(r *rig) {
		r.expectWoken()
		r.Track("w1", track(map[string]Signature{"a": Signature("u-1 101")})) // the state that the write will return
		s.put("a")
		r.expectWoken()
	})
}

func TestWatcher_EndsUnneededWatches(t *testing.T) {
	s := newServer()
	inBubble(t, s, nil, func(r *rig) {
		base := s.open()
		r.Track("w1", track(map[string]Signature{"a": Unknown, "b": Unknown}))
		r.Track("w2", track(map[string]Signature{"a": Unknown}))
		synctest.Wait()
		if n := r.Counts(); s.open() != base+1 || n != (Counts{Watches: 2}) {
			t.Fatalf("%d watches open, counted %+v", s.open(), n)
		}
		r.Track("w1", nil)
		synctest.Wait()
		if s.open() != base+1 {
			t.Fatal("the watch ended although it is needed")
		}
		r.Track("w2", nil)
		synctest.Wait()
		if s.open() != base {
			t.Fatal("the watch continues although it is not needed")
		}
		r.expectSeen("a", Absent, false)
	})
}

func TestWatcher_MissedChangesAreFoundByTheNextList(t *testing.T) {
	s := newServer()
	a, b := s.put("a"), s.put("b")
	inBubble(t, s, func(r *rig) { r.Track("w1", track(map[string]Signature{"a": a, "b": b})) }, func(r *rig) {
		r.expectWoken()
		s.cut(apierrors.NewResourceExpired("too old"))
		a = s.put("a")
		s.remove("b")
		<-time.After(2 * time.Second)
		r.expectWoken("w1")
		r.expectSeen("a", a, true)
		r.expectSeen("b", Absent, true)
	})
}

func TestWatcher_ReportsMissedChangesOfPermanentWatches(t *testing.T) {
	s := newServer()
	inBubble(t, s, nil, func(r *rig) {
		expect := func(when string, want int64) {
			t.Helper()
			synctest.Wait()
			if got := r.unsure.Load(); got != want {
				t.Fatalf("%s: unsure %d times, want %d", when, got, want)
			}
		}
		expect("after the first list", 1)
		s.put("a")
		s.cut(nil)
		<-time.After(2 * time.Second)
		expect("after a watch that went on where it ended", 1)
		s.cut(apierrors.NewResourceExpired("too old"))
		<-time.After(2 * time.Second)
		expect("after another list, although nothing is there", 2)
		s.deny(apierrors.NewForbidden(records.GroupResource(), "", errors.New("no rule")))
		s.cut(apierrors.NewResourceExpired("too old"))
		<-time.After(3 * deniedRetry)
		expect("while it is denied", 3)
		if r.Ready() == nil {
			t.Error("ready, although it cannot be watched any more")
		}
		s.deny(nil)
		<-time.After(deniedRetry)
		expect("when it is allowed again", 4)
	})
}

func TestWatcher_WatchGoesOnWhereItEnded(t *testing.T) {
	s := newServer()
	a := s.put("a")
	inBubble(t, s, func(r *rig) { r.Track("w1", track(map[string]Signature{"a": a})) }, func(r *rig) {
		r.expectWoken()
		s.bookmark()
		synctest.Wait()
		<-time.After(2 * time.Second)
		s.cut(nil)
		synctest.Wait()
		s.mu.Lock()
		lists, looks, last := s.lists, s.looks, s.watches[len(s.watches)-1]
		s.mu.Unlock()
		if last != "102" || lists != 2 || looks != 2 { // one each for this scope, one for the permanent resource
			t.Fatalf("watched again at version %s after %d lists and %d looks at the position, want 102 without another list", last, lists, looks)
		}
	})
}

func TestWatcher_DeniedScopesAreReportedAndTriedAgain(t *testing.T) {
	s := newServer()
	a := s.put("a")
	s.fail = apierrors.NewForbidden(configMaps.GroupResource(), "", errors.New("no rule"))
	inBubble(t, s, func(r *rig) { r.Track("w1", track(map[string]Signature{"a": a})) }, func(r *rig) {
		r.expectWoken("w1") // without a watch, the owner must read the object itself
		r.expectSeen("a", Absent, false)
		if n := r.Counts(); r.Unwatched("w1") != 1 || r.Unwatched("w2") != 0 || n != (Counts{Watches: 2, Denied: 2, DeniedObjects: 1}) || r.Ready() == nil {
			t.Fatal("the denial is not reported")
		}
		s.deny(nil)
		<-time.After(deniedRetry)
		r.expectWoken()
		r.expectSeen("a", a, true)
		if r.Unwatched("w1") != 0 || r.Ready() != nil {
			t.Fatal("the end of the denial is not noticed")
		}
	})
}

// Scenario:
//
//	t1: a kube-apiserver starts and has not read its roles.
//	t2: it denies a watch.
//	t3: two seconds later it has read them.
//
// Result: the watch is retried soon. A lasting denial is retried hardly more often than once a minute.
func TestWatcher_DenialOfAMomentIsOverSoon(t *testing.T) {
	forbidden := apierrors.NewForbidden(configMaps.GroupResource(), "", errors.New("no rule"))
	s := newServer()
	a := s.put("a")
	inBubble(t, s, func(r *rig) { r.Track("w1", track(map[string]Signature{"a": a})) }, func(r *rig) {
		moment := func(when string) {
			t.Helper()
			s.deny(forbidden)
			s.cut(apierrors.NewResourceExpired("too old"))
			<-time.After(2 * time.Second)
			s.deny(nil)
			<-time.After(4 * time.Second)
			if r.Unwatched("w1") != 0 || r.Ready() != nil {
				t.Errorf("%s: still denied, four seconds after it was allowed", when)
			}
		}
		moment("the first denial")
		moment("the next one")

		s.deny(forbidden)
		s.cut(apierrors.NewResourceExpired("too old"))
		s.mu.Lock()
		s.lists = 0
		s.mu.Unlock()
		<-time.After(time.Hour)
		s.mu.Lock()
		n := s.lists
		s.mu.Unlock()
		if n > 2*130 { // of this scope and of the permanent resource; at most 120 each, if all waits are the shortest
			t.Errorf("%d requests in an hour", n)
		}
		t.Logf("%d requests in an hour", n)

		s.deny(nil)
		<-time.After(deniedRetry)
		<-time.After(time.Minute) // the watch stays open for a while
		moment("after a long denial that ended")
	})
}

func TestWatcher_BacksOffFromUnansweringServer(t *testing.T) {
	s := newServer()
	s.fail = errors.New("connection refused")
	inBubble(t, s, nil, func(*rig) { // only the standing watch
		<-time.After(10 * time.Minute)
		synctest.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.lists < 20 || s.lists > 60 {
			t.Fatalf("%d lists in ten minutes", s.lists)
		}
	})
}

func TestWatcher_ListInPages(t *testing.T) {
	s := newServer()
	s.page = 2
	var last Signature
	for i := range 5 {
		last = s.put(fmt.Sprintf("o%d", i))
	}
	var r0 *rig
	pages := 0
	s.between = func() {
		if pages++; pages == 2 {
			r0.Track("late", track(map[string]Signature{"o0": Unknown})) // the list has passed its page
		}
	}
	inBubble(t, s, func(r *rig) {
		r0, r.records = r, newServer()
		r.Track("w1", track(map[string]Signature{"o4": last, "none": Unknown}))
	}, func(r *rig) {
		r.expectWoken("late", "w1") // "late" may have read too early, "w1" is notified of the absence
		r.expectSeen("o4", last, true)
		r.expectSeen("none", Absent, true)
		r.expectSeen("o0", Absent, false)
	})
}

func TestWatcher_PermanentWatchReportsUntrackedObjects(t *testing.T) {
	s := newServer()
	s.namespace = ""
	s.put("deleting")
	inBubble(t, s, nil, func(r *rig) {
		r.expectWoken("record deleting")
		s.put("other")
		r.expectWoken()
		s.put("deleting")
		r.expectWoken("record deleting")
		r.Track("w1", map[kubeclient.Ref]Signature{{GroupVersionResource: records, Name: "deleting"}: Unknown})
		s.put("deleting")
		r.expectWoken("w1")
		s.remove("deleting")
		r.expectWoken("w1")
		s.remove("other")
		r.expectWoken()
		if want := []string{"deleting", "other"}; !slices.Equal(r.gone, want) {
			t.Errorf("deleted %q, want %q", r.gone, want)
		}
	})
}

// Every change wakes an owner that expects the exact state. Only another content wakes other owners.
func TestWatcher_StatusWakesOwnersOfExactState(t *testing.T) {
	deployments := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	web := kubeclient.Ref{GroupVersionResource: deployments, Namespace: "default", Name: "web"}
	s := newServer()
	change := func(version string, generation int64) ObservedObject {
		s.mu.Lock()
		defer s.mu.Unlock()
		o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "u", ResourceVersion: version, Generation: generation}}
		s.objects["web"] = o
		s.send(watch.Modified, o)
		return StateOf(deployments, o)
	}
	first := change("1", 1)
	inBubble(t, s, func(r *rig) {
		r.records = newServer()
		r.Track("content", map[kubeclient.Ref]Signature{web: first.Content})
		r.Track("status", map[kubeclient.Ref]Signature{web: first.Exact})
	}, func(r *rig) {
		r.expectWoken()
		second := change("2", 1)
		r.expectWoken("status")
		if seen, ok := r.LastSeen(web); !ok || seen != second || seen.Content != first.Content || seen.Is(first.Exact) {
			t.Fatalf("seen %q, %v", seen, ok)
		}
		change("3", 2)
		r.expectWoken("content", "status")
	})
}

func TestSignatureOf(t *testing.T) {
	deployments := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	ropes := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "ropes"}
	endpoints := schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}
	base := func() *metav1.ObjectMeta {
		return &metav1.ObjectMeta{UID: "u", Generation: 1, ResourceVersion: "1", Labels: map[string]string{"a": "1", "b": "2"}}
	}
	changed := func(f func(*metav1.ObjectMeta)) *metav1.ObjectMeta {
		m := base()
		f(m)
		return m
	}
	status := changed(func(m *metav1.ObjectMeta) { m.ResourceVersion = "2" })
	content := changed(func(m *metav1.ObjectMeta) { m.ResourceVersion, m.Generation = "2", 2 })
	for _, c := range []struct {
		gvr  schema.GroupVersionResource
		m    *metav1.ObjectMeta
		same bool
	}{
		{deployments, status, true},
		{ropes, status, true},
		{endpoints, status, false},
		{configMaps, status, false},
		{records, status, false},
		{deployments, content, false},
		{ropes, content, false},
		{deployments, changed(func(m *metav1.ObjectMeta) { m.UID = "v" }), false},
		{deployments, changed(func(m *metav1.ObjectMeta) { m.Labels["a"] = "2" }), false},
		{deployments, changed(func(m *metav1.ObjectMeta) { m.Annotations = map[string]string{"x": "y"} }), false},
		{deployments, changed(func(m *metav1.ObjectMeta) { m.OwnerReferences = []metav1.OwnerReference{{Name: "o"}} }), false},
		{deployments, changed(func(m *metav1.ObjectMeta) { m.DeletionTimestamp = &metav1.Time{} }), false},
	} {
		if got := SignatureOf(c.gvr, base()) == SignatureOf(c.gvr, c.m); got != c.same {
			t.Errorf("%s %+v: same %v, want %v", c.gvr.Resource, c.m, got, c.same)
		}
	}
	old, gen := base(), base()
	old.Generation, gen.Generation = 0, 0
	gen.ResourceVersion = "2"
	if SignatureOf(ropes, old) == SignatureOf(ropes, gen) {
		t.Error("the resource version of an object without a generation is not compared")
	}
}
