package drift

import (
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// restore resets the server to an earlier state of object a, at that position. Watches continue from their
// position without an event.
func (s *server) restore(version int) Signature {
	s.mu.Lock()
	for name := range s.objects {
		if name != "a" {
			delete(s.objects, name)
		}
	}
	a := s.objects["a"].DeepCopy()
	a.ResourceVersion = strconv.Itoa(50)
	s.objects["a"], s.version = a, version
	s.mu.Unlock()
	s.cut(nil)
	return SignatureOf(configMaps, a)
}

// requests returns the number of full lists, and of lists of one object.
func (s *server) requests() [2]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return [2]int{s.lists, s.looks}
}

func TestWatcher_ListsAgainInAnotherHistory(t *testing.T) {
	for name, c := range map[string]struct {
		version int
		lost    bool
	}{"the position is before": {version: 60}, "the position is later, and an own write is not there": {version: 500, lost: true}} {
		t.Run(name, func(t *testing.T) {
			s := newServer()
			a, b := s.put("a"), s.put("b")
			inBubble(t, s, func(r *rig) { r.Track("w1", track(map[string]Signature{"a": a, "b": b})) }, func(r *rig) {
				r.expectWoken()
				<-time.After(2 * time.Second)
				r.dropped.Store(c.lost)
				a = s.restore(c.version)
				<-time.After(3 * time.Second)
				r.expectWoken("w1")
				r.expectSeen("a", a, true)
				r.expectSeen("b", Absent, true)
				if got := s.requests(); got[0] != 4 || got[1] > 2 || s.open() != 2 {
					t.Errorf("%d lists and %d looks, want 4 and at most 2; %d watches are open", got[0], got[1], s.open())
				}
			})
		})
	}
}

// TestWatcher_ARestartedServerIsNotListedAgain: the restart costs one list of a single object per watch, and
// one read of own writes for all together.
func TestWatcher_ARestartedServerIsNotListedAgain(t *testing.T) {
	s := newServer()
	a := s.put("a")
	inBubble(t, s, func(r *rig) { r.Track("w1", track(map[string]Signature{"a": a})) }, func(r *rig) {
		r.expectWoken()
		<-time.After(2 * time.Second)
		before := s.requests()
		s.deny(errors.New("connection refused"))
		s.cut(nil)
		<-time.After(10 * time.Second)
		failed := s.requests()
		s.deny(nil)
		<-time.After(time.Minute)
		r.expectWoken()
		r.expectSeen("a", a, true)
		if got := s.requests(); got[0] != before[0] || got[1]-failed[1] != 2 || r.readBacks.Load() != 1 || s.open() != 2 {
			t.Errorf("%d lists, %d looks and %d times own writes, want none, 2 and 1; %d watches are open", got[0]-before[0], got[1]-failed[1], r.readBacks.Load(), s.open())
		}
	})
}

// TestWatcher_ExpiredWatchCausesNoRequest: a watch that ends on time causes no request.
func TestWatcher_ExpiredWatchCausesNoRequest(t *testing.T) {
	s := newServer()
	s.put("a")
	inBubble(t, s, func(r *rig) { r.Track("w1", track(map[string]Signature{"a": Unknown})) }, func(r *rig) {
		<-time.After(2*watchTime + time.Second)
		before := s.requests()
		s.cut(nil)
		synctest.Wait()
		if got := s.requests(); got != before || r.readBacks.Load() != 0 || s.open() != 2 {
			t.Errorf("%v requests after %v; %d watches are open", got, before, s.open())
		}
	})
}

// TestWatcher_OpenWatchesEndWithTheHistory: when one watch detects another history, all watches end.
func TestWatcher_OpenWatchesEndWithTheHistory(t *testing.T) {
	s := newServer()
	a := s.put("a")
	inBubble(t, s, func(r *rig) { r.Track("w1", track(map[string]Signature{"a": a})) }, func(r *rig) {
		<-time.After(2 * time.Second)
		before := s.requests()
		present, _ := r.history.Present()
		r.history.End(present, "test")
		<-time.After(2 * time.Second)
		if got := s.requests(); got[0] != before[0]+2 || s.open() != 2 {
			t.Errorf("%d lists, want 2; %d watches are open", got[0]-before[0], s.open())
		}
		r.expectSeen("a", a, true)
	})
}
