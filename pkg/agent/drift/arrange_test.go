package drift

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

var secrets = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}

// at returns the reference of the object "o" in the namespace with this number.
func at(namespace int) kubeclient.Ref {
	return kubeclient.Ref{GroupVersionResource: configMaps, Namespace: fmt.Sprintf("n%02d", namespace), Name: "o"}
}

// station is a running Watcher on an api.
type station struct {
	t *testing.T
	*api
	*Watcher
	reported sync.Mutex
	woken    []string
	lines    strings.Builder
}

func (s *station) Write(b []byte) (int, error) {
	s.reported.Lock()
	defer s.reported.Unlock()
	return s.lines.Write(b)
}

func (s *station) logged() string {
	s.reported.Lock()
	defer s.reported.Unlock()
	return s.lines.String()
}

// atWork runs f in a bubble with a running station.
func atWork(t *testing.T, maxWatches int, before func(*api), f func(*station)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &station{t: t, api: newAPI()}
		before(s.api)
		s.Watcher = New(Config{
			Source: s.source, MaxWatches: maxWatches, Log: slog.New(slog.NewTextHandler(s, nil)),
			Changed: func(owner string) {
				s.reported.Lock()
				defer s.reported.Unlock()
				s.woken = append(s.woken, owner)
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		synctest.Wait()
		f(s)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
		if n := s.open(); n != 0 {
			t.Errorf("%d watches are still open", n)
		}
	})
}

func (s *station) expectWoken(when string, want ...string) {
	s.t.Helper()
	synctest.Wait()
	s.reported.Lock()
	defer s.reported.Unlock()
	slices.Sort(s.woken)
	if !slices.Equal(s.woken, want) {
		s.t.Fatalf("%s: woken %q, want %q", when, s.woken, want)
	}
	s.woken = nil
}

// trackOne makes an owner track and read the object of a namespace.
func (s *station) trackOne(namespace int) {
	owner, ref := fmt.Sprintf("w%02d", namespace), at(namespace)
	now := map[kubeclient.Ref]Signature{ref: s.state(ref).Content}
	s.Track(owner, now)
	synctest.Wait()
	s.Track(owner, map[kubeclient.Ref]Signature{ref: Unknown})
	s.Track(owner, now)
}

func (s *station) expectScopes(when string, want ...string) {
	s.t.Helper()
	synctest.Wait()
	if got := s.scopes(); !slices.Equal(got, want) {
		s.t.Fatalf("%s: watched %q, want %q", when, got, want)
	}
}

func (s *station) expectKnown(when string, namespaces ...int) {
	s.t.Helper()
	synctest.Wait()
	for _, n := range namespaces {
		if seen, ok := s.LastSeen(at(n)); !ok || seen.Content != s.state(at(n)).Content {
			s.t.Fatalf("%s: %v seen %q, %v; it is %q", when, at(n), seen, ok, s.state(at(n)))
		}
	}
}

func everywhere(n int) func(*api) {
	return func(a *api) {
		for i := range n {
			a.put(at(i))
		}
	}
}

func namespaces(n int) (names []string, numbers []int) {
	for i := range n {
		names = append(names, "configmaps/"+at(i).Namespace)
		numbers = append(numbers, i)
	}
	return names, numbers
}

func TestWatcher_ManyNamespacesAreWatchedAtOnce(t *testing.T) {
	atWork(t, 0, everywhere(20), func(s *station) {
		for i := range manySpaces {
			s.trackOne(i)
		}
		names, few := namespaces(manySpaces)
		s.expectScopes("few", names...)
		s.expectKnown("few", few...)

		for i := manySpaces; i < 20; i++ {
			s.trackOne(i)
		}
		s.expectScopes("many", "configmaps/")
		if n := s.Counts(); n != (Counts{Watches: 1}) {
			t.Fatalf("counted %+v", n)
		}
		_, all := namespaces(20)
		s.expectKnown("many", all...)
		s.expectWoken("nothing has changed")

		s.put(at(3))
		s.put(kubeclient.Ref{GroupVersionResource: configMaps, Namespace: "n03", Name: "other"})
		s.put(kubeclient.Ref{GroupVersionResource: configMaps, Namespace: "elsewhere", Name: "o"})
		s.expectWoken("a change", "w03")
		s.remove(at(15))
		s.expectWoken("a deletion", "w15")
		if seen, ok := s.LastSeen(at(15)); !ok || seen != (ObservedObject{}) {
			t.Fatalf("seen %v, %v", seen, ok)
		}
		for i := range 20 {
			s.Track(fmt.Sprintf("w%02d", i), nil)
		}
		s.expectScopes("nothing is tracked")
		if n := s.Counts(); n != (Counts{}) || len(s.kinds) != 0 {
			t.Fatalf("left: %+v, %v", n, s.kinds)
		}
	})
}

// A change during the list of all namespaces is seen by the watches that it is about to replace.
func TestWatcher_NothingIsMissedWhileOneWatchReplacesOthers(t *testing.T) {
	atWork(t, 0, everywhere(20), func(s *station) {
		for i := range manySpaces {
			s.trackOne(i)
		}
		synctest.Wait()
		s.page = 3
		s.lag = func(scope Scope) time.Duration {
			if scope.Namespace == "" {
				return time.Second
			}
			return 0
		}
		s.trackOne(manySpaces) // starts a list of seven pages
		<-time.After(4500 * time.Millisecond)
		s.put(at(1))
		s.expectWoken("while it is under way", "w01")
		s.trackOne(1)
		s.put(at(manySpaces)) // its namespace has no watch yet
		s.trackOne(manySpaces + 1)
		s.put(at(manySpaces + 1))
		s.expectWoken("not watched yet")
		<-time.After(10 * time.Second)
		s.expectScopes("after it", "configmaps/")
		s.reported.Lock()
		woken := slices.Compact(slices.Sorted(slices.Values(s.woken)))
		s.woken = nil
		s.reported.Unlock()
		if !slices.Contains(woken, "w08") || !slices.Contains(woken, "w09") || slices.ContainsFunc(woken, func(o string) bool { return o != "w01" && o != "w08" && o != "w09" }) {
			t.Fatalf("woken %q", woken)
		}
		s.trackOne(manySpaces)
		s.trackOne(manySpaces + 1)
		s.expectKnown("after it", 0, 1, 2, manySpaces, manySpaces+1)
	})
}

func TestWatcher_WhereNotAllNamespacesMayBeWatched(t *testing.T) {
	all := Scope{GroupVersionResource: configMaps}
	atWork(t, 0, func(a *api) { everywhere(12)(a); a.forbid(all, true) }, func(s *station) {
		for i := range 12 {
			s.trackOne(i)
		}
		names, numbers := namespaces(12)
		s.expectScopes("each namespace has its own", names...)
		s.expectKnown("each namespace has its own", numbers...)
		if n := s.Counts(); n.Denied != 0 || s.Unwatched("w11") != 0 {
			t.Fatalf("counted %+v", n)
		}
		if log := s.logged(); strings.Count(log, "cannot be watched at once") != 1 || strings.Contains(log, "WARN") {
			t.Errorf("log %s", log)
		}
		<-time.After(time.Hour)
		s.api.mu.Lock()
		n := s.lists[all]
		s.api.mu.Unlock()
		if n < 2 || n > 20 {
			t.Errorf("%d requests", n)
		}
		s.forbid(all, false)
		<-time.After(wideDeniedRetry)
		s.expectScopes("when it is allowed", "configmaps/")
		s.expectKnown("when it is allowed", numbers...)
		s.expectWoken("in all that time")

		// The right for all namespaces is removed again, and one namespace may not be watched at all.
		s.forbid(all, true)
		s.forbid(Scope{configMaps, "n05"}, true)
		s.cut(true)
		s.put(at(7))
		<-time.After(time.Minute)
		s.expectWoken("the changed object, and owners that must look", "w05", "w07")
		if n := s.Counts(); n.DeniedObjects != 1 || s.Unwatched("w05") != 1 || s.Unwatched("w07") != 0 {
			t.Fatalf("counted %+v", n)
		}
		s.expectKnown("denied again", 0, 7, 11)
	})
}

// A definition can be removed before the watch shows the objects of its kind as gone: the owner needs to do
// nothing.
func TestWatcher_DetectsUnservedKind(t *testing.T) {
	atWork(t, 0, everywhere(1), func(s *station) {
		s.trackOne(0)
		s.expectKnown("at first", 0)
		s.undefine(configMaps)
		s.cut(true)
		<-time.After(deniedRetry)
		s.expectWoken("the owner that must look", "w00")
		if log := s.logged(); !strings.Contains(log, "could not find the requested resource") || strings.Contains(log, "WARN") {
			t.Errorf("log %s", log)
		}
	})
}

// Between the request of a list and its creation an owner can track an object and read a state that is older
// than the list.
func TestWatcher_ReadBeforeTheListWasMade(t *testing.T) {
	late := kubeclient.Ref{GroupVersionResource: configMaps, Namespace: "n00", Name: "late"}
	atWork(t, 0, func(a *api) { everywhere(1)(a); a.put(late); a.lag = func(Scope) time.Duration { return time.Second } }, func(s *station) {
		s.Track("w00", map[kubeclient.Ref]Signature{at(0): s.state(at(0)).Content}) // the list begins
		<-time.After(500 * time.Millisecond)
		s.Track("late", map[kubeclient.Ref]Signature{late: Unknown})
		read := s.state(late).Content
		s.remove(late)
		<-time.After(3 * time.Second)
		s.expectWoken("by the list, which lacks it", "late")
		s.Track("late", map[kubeclient.Ref]Signature{late: read})
		if seen, ok := s.LastSeen(late); ok {
			t.Fatalf("seen %q, which it was before the list", seen)
		}
		s.Track("late", map[kubeclient.Ref]Signature{late: Absent}) // read again
		if seen, ok := s.LastSeen(late); !ok || seen != (ObservedObject{}) {
			t.Fatalf("seen %q, %v", seen, ok)
		}
	})
}

// A state that only the replaced watch has seen, of an object that its successor's list does not contain, is
// dropped. The deletion may have been in flight.
func TestWatcher_SeenByTheReplacedWatchOnly(t *testing.T) {
	late := kubeclient.Ref{GroupVersionResource: configMaps, Namespace: "n00", Name: "late"}
	atWork(t, 0, everywhere(20), func(s *station) {
		for i := range manySpaces {
			s.trackOne(i)
		}
		slow := time.Duration(0)
		s.lag = func(scope Scope) time.Duration {
			if scope.Namespace == "" {
				return time.Second
			}
			return slow
		}
		s.Track("w08", map[kubeclient.Ref]Signature{at(8): s.state(at(8)).Content}) // the list begins
		<-time.After(100 * time.Millisecond)
		s.Track("late", map[kubeclient.Ref]Signature{late: Absent})
		s.put(late)
		s.expectWoken("by its own watch", "late")
		slow = time.Hour
		s.remove(late)
		<-time.After(time.Minute)
		s.expectScopes("replaced", "configmaps/")
		if seen, ok := s.LastSeen(late); ok {
			t.Fatalf("seen %q, and it is %q", seen, s.state(late))
		}
		s.expectWoken("to look", "late")
	})
}

// A replaced watch may still deliver events.
func TestWatcher_ReplacedWatchesDoNotCount(t *testing.T) {
	atWork(t, 0, everywhere(20), func(s *station) {
		s.trackOne(0)
		s.Watcher.mu.Lock()
		space, _ := s.find(at(0))
		old := space.feed
		s.Watcher.mu.Unlock()
		for i := range 20 {
			s.trackOne(i)
		}
		s.expectScopes("replaced", "configmaps/")
		s.put(at(0))
		s.expectWoken("by the watch of all namespaces", "w00")
		s.trackOne(0)
		s.saw(old, key{at(0).Namespace, at(0).Name}, ObservedObject{})
		s.listed(old, nil)
		s.Watcher.deny(old)
		s.falter(old)
		s.expectWoken("by the replaced one")
		s.expectKnown("afterwards", 0, 1)
		if n := s.Counts(); n != (Counts{Watches: 1}) {
			t.Fatalf("counted %+v", n)
		}
	})
}

// A list of all namespaces that fails is not waited for.
func TestWatcher_WatchesDespiteFailedList(t *testing.T) {
	atWork(t, 0, everywhere(12), func(s *station) {
		for i := range manySpaces {
			s.trackOne(i)
		}
		synctest.Wait()
		s.fail(true)
		for i := manySpaces; i < 12; i++ {
			s.trackOne(i)
		}
		<-time.After(500 * time.Millisecond)
		if n := s.Counts(); n.Watches != 13 {
			t.Fatalf("counted %+v", n)
		}
		s.fail(false)
		<-time.After(5 * time.Minute)
		s.expectScopes("later", "configmaps/")
		s.expectWoken("in all that time")
	})
}

func TestWatcher_NumberOfWatchesIsBounded(t *testing.T) {
	kind := func(i int) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: fmt.Sprintf("kind%d", i)}
	}
	of := func(i int) kubeclient.Ref {
		return kubeclient.Ref{GroupVersionResource: kind(i), Namespace: "n", Name: "o"}
	}
	atWork(t, 3, func(*api) {}, func(s *station) {
		for i := range 5 {
			s.Track(fmt.Sprint("w", i), map[kubeclient.Ref]Signature{of(i): Absent})
		}
		synctest.Wait()
		if n := s.Counts(); n != (Counts{Watches: 3, WaitingObjects: 2}) || s.open() != 3 {
			t.Fatalf("counted %+v, %d open", n, s.open())
		}
		if s.Unwatched("w2") != 0 || s.Unwatched("w3") != 2 || s.Unwatched("w4") != 2 {
			t.Fatal("an owner that must look is not notified")
		}
		s.put(of(4))
		s.expectWoken("an unwatched object")
		s.Track("w0", nil)
		s.Track("w1", nil)
		s.expectWoken("there is room", "w4")
		if n := s.Counts(); n != (Counts{Watches: 3}) || s.open() != 3 {
			t.Fatalf("counted %+v, %d open", n, s.open())
		}
		if log := s.logged(); strings.Count(log, "too many watches") != 1 || strings.Count(log, "is below the limit again") != 1 {
			t.Errorf("log %s", log)
		}
	})
}

// Before a namespace is left without a watch, kinds get one watch for all namespaces.
func TestWatcher_FreesWatchesByWatchingAllNamespaces(t *testing.T) {
	atWork(t, 3, everywhere(4), func(s *station) {
		for i := range 3 {
			s.trackOne(i)
		}
		names, _ := namespaces(3)
		s.expectScopes("room for all", names...)
		s.trackOne(3)
		s.expectScopes("no more room", "configmaps/")
		s.expectKnown("no more room", 0, 1, 2, 3)
		s.Track("s", map[kubeclient.Ref]Signature{{GroupVersionResource: secrets, Namespace: "n", Name: "s"}: Absent})
		s.expectScopes("room was made", "configmaps/", "secrets/n")
		s.expectWoken("in all that time")
	})
}

// If neither is possible, owners are notified and must read the objects themselves.
func TestWatcher_WatchLimitWithoutAllNamespaces(t *testing.T) {
	all := Scope{GroupVersionResource: configMaps}
	atWork(t, 3, func(a *api) { everywhere(5)(a); a.forbid(all, true) }, func(s *station) {
		for i := range 5 {
			s.trackOne(i)
		}
		synctest.Wait()
		if n := s.Counts(); n.Watches != 3 || n.WaitingObjects != 3 { // one of the three is an attempt to watch all namespaces
			t.Fatalf("counted %+v", n)
		}
		unwatched := 0
		for i := range 5 {
			if s.Unwatched(fmt.Sprintf("w%02d", i)) == 3 {
				unwatched++
			}
		}
		if unwatched != 3 {
			t.Fatalf("%d owners look for themselves", unwatched)
		}
		s.reported.Lock()
		woken := slices.Clone(s.woken)
		s.reported.Unlock()
		// The last owner knew it when it began to track. Another owner lost its watch to make room.
		if len(woken) != 2 || !slices.Contains(woken, "w03") || s.Unwatched(woken[0]) == 0 || s.Unwatched(woken[1]) == 0 {
			t.Errorf("notified: %q", woken)
		}
		s.forbid(all, false)
		<-time.After(wideDeniedRetry)
		s.expectScopes("when it is allowed", "configmaps/")
		if n := s.Counts(); n != (Counts{Watches: 1}) {
			t.Fatalf("counted %+v", n)
		}
	})
}
