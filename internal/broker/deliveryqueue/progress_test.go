package deliveryqueue_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/broker/deliveryqueue"
)

func at(seconds int) time.Time { return time.Unix(1_000_000+int64(seconds), 0) }

func TestProgress_ReportsNothingBeforeThereIsABase(t *testing.T) {
	var p deliveryqueue.Progress
	p.Touch()
	if _, ok := p.Complete(at(100), 7); ok {
		t.Error("complete without a base")
	}
	if _, ok := p.Partial(at(100), 7, 5); ok {
		t.Error("partial without a base")
	}
	p.Begin(3, at(5))
	if r, ok := p.Complete(at(0), 7); !ok || r != 7 {
		t.Errorf("with a base: %d, %v", r, ok)
	}
	if p.Revision() != 3 {
		t.Errorf("the client's cursor has revision %d", p.Revision())
	}
}

func TestProgress_ReportsOnceAndNotTooOften(t *testing.T) {
	var p deliveryqueue.Progress
	p.Begin(0, at(5))
	report := func(second int, position uint64) {
		t.Helper()
		r, ok := p.Complete(at(second), position)
		if !ok || r != position {
			t.Fatalf("at %d s: %d, %v", second, r, ok)
		}
		p.Done()
		p.Reported(r, at(second+2), at(second+5))
	}
	muted := func(second int, position uint64) {
		t.Helper()
		if r, ok := p.Complete(at(second), position); ok {
			t.Fatalf("at %d s: %d", second, r)
		}
	}
	report(0, 7)
	muted(100, 9) // no news
	if _, ok := p.Deadline(9); ok {
		t.Error("a deadline is set although no report is due")
	}
	p.Touch()
	muted(1, 9)
	if u, ok := p.Deadline(9); !ok || !u.Equal(at(2)) {
		t.Errorf("wait until %v, %v", u, ok)
	}
	report(2, 9)
	p.Touch()
	p.Await(12)
	muted(9, 11)
	if _, ok := p.Deadline(11); ok {
		t.Error("there is a time to wait for although the router has to come")
	}
	report(9, 12)
	p.Touch()
	report(11, 12) // there may be other news than the revision
}

func TestProgress_PartialOnlyWhenItMoves(t *testing.T) {
	var p deliveryqueue.Progress
	p.Begin(10, at(5))
	for _, c := range []struct {
		second           int
		position, oldest uint64
		want             uint64
	}{
		{4, 100, 50, 0},  // the pause is not over
		{5, 100, 11, 0},  // 10 was reported before
		{5, 100, 50, 49}, // up to the revision before the oldest
		{5, 30, 50, 30},  // up to the position of the router
		{5, 100, 0, 0},
	} {
		r, ok := p.Partial(at(c.second), c.position, c.oldest)
		if ok != (c.want != 0) || ok && r != c.want {
			t.Errorf("%+v: %d, %v", c, r, ok)
		}
	}
	p.Postpone(at(10))
	if p.MayBePartial(at(9)) || !p.MayBePartial(at(10)) {
		t.Error("postponed to another time")
	}
}

func TestProgress_NeverCoversUnsendableRecords(t *testing.T) {
	var p deliveryqueue.Progress
	p.Begin(0, at(5))
	p.Block(40)
	p.Block(60)
	if r, ok := p.Complete(at(0), 100); !ok || r != 39 || !p.Blocked() {
		t.Errorf("%d, %v", r, ok)
	}
	p.Reported(39, at(1), at(5))
	if r, ok := p.Complete(at(50), 200); ok {
		t.Errorf("a checkpoint at %d is sent again and again", r)
	}
	if _, ok := p.Deadline(200); ok {
		t.Error("there is something to wait for")
	}
}

// feed is a simple model of a store, a router and a subscriber.
type feed struct {
	latest map[deliveryqueue.Key]uint64 // revision of each record's last change
	head   uint64
	routed uint64
	had    map[deliveryqueue.Key]uint64 // revision as of which each record was sent to the subscriber
	mail   deliveryqueue.Queue
	p      deliveryqueue.Progress
	now    int
}

// route posts the changes up to a revision. The feed has each record once, with its last change.
func (f *feed) route(to uint64) {
	for r := f.routed + 1; r <= to; r++ {
		for k, last := range f.latest {
			if last == r {
				f.mail.Post(k, r, 0)
			}
		}
	}
	f.routed = to
}

// check fails if a client that continues from revision r would never get a change.
func (f *feed) check(t *rapid.T, r uint64) {
	for k, last := range f.latest {
		if last <= r && f.had[k] < last {
			t.Fatalf("a checkpoint at %d covers %s, last changed at %d, which was sent as of %d", r, k.ResourceID, last, f.had[k])
		}
	}
}

// TestProgress_CoversOnlySentRevisions: the revision of a checkpoint never covers an unsent change. The test
// posts, answers, returns, removes, omits and delays entries.
func TestProgress_CoversOnlySentRevisions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := &feed{latest: map[deliveryqueue.Key]uint64{}, had: map[deliveryqueue.Key]uint64{}}
		key := rapid.Custom(func(t *rapid.T) deliveryqueue.Key { return key(rapid.IntRange(0, 7).Draw(t, "n")) })
		change := func(t *rapid.T) {
			f.head++
			f.latest[key.Draw(t, "key")] = f.head
		}
		for range rapid.IntRange(0, 10).Draw(t, "changes before") {
			change(t)
		}
		// The client has everything up to its cursor.
		f.routed = f.head
		cursor := rapid.Uint64Range(0, f.head).Draw(t, "cursor")
		for k, r := range f.latest {
			if r <= cursor {
				f.had[k] = r
			}
		}
		begun := false
		var held []deliveryqueue.Entry // taken out of the queue and not sent
		send := func(e deliveryqueue.Entry) { f.had[e.Key] = f.latest[e.Key] }
		t.Repeat(map[string]func(*rapid.T){
			"change": change,
			"route":  func(t *rapid.T) { f.route(rapid.Uint64Range(f.routed, f.head).Draw(t, "to")) },
			"fill": func(*rapid.T) {
				if begun {
					return
				}
				for r := cursor + 1; r <= f.head; r++ {
					for k, last := range f.latest {
						if last == r {
							f.mail.Answer(k, r, 0)
						}
					}
				}
				begun = true
				f.p.Begin(cursor, at(f.now+5))
			},
			"deliver": func(*rapid.T) {
				if e, ok := f.mail.Next(); ok {
					send(e)
					f.p.Touch()
				}
			},
			"take out": func(*rapid.T) {
				if e, ok := f.mail.Next(); ok {
					held = append(held, e)
				}
			},
			"return": func(*rapid.T) {
				for _, e := range held {
					f.mail.Return(e)
				}
				held = nil
			},
			"cannot be read": func(*rapid.T) {
				if e, ok := f.mail.Next(); ok {
					f.p.Block(e.Revision)
				}
			},
			"gone": func(t *rapid.T) {
				k := key.Draw(t, "key")
				delete(f.latest, k)
				f.mail.Remove(k)
			},
			"sent again": func(t *rapid.T) { // an agent lost a work, or listed an old one
				k := key.Draw(t, "key")
				if r, ok := f.latest[k]; ok && r <= f.routed {
					f.mail.Answer(k, r, 0)
				}
			},
			"complete": func(t *rapid.T) {
				position := f.routed
				if f.mail.Len() > 0 || len(held) > 0 {
					return
				}
				if r, ok := f.p.Complete(at(f.now), position); ok {
					f.check(t, r)
					f.p.Done()
					f.p.Reported(r, at(f.now+1), at(f.now+5))
				}
			},
			"partial": func(t *rapid.T) {
				position := f.routed
				oldest, ok := f.mail.Oldest()
				for _, e := range held {
					if !ok || e.Revision < oldest {
						oldest, ok = e.Revision, true
					}
				}
				if !ok {
					return
				}
				if r, ok := f.p.Partial(at(f.now), position, oldest); ok {
					if r <= f.p.Revision() {
						t.Fatalf("partial checkpoint %d after %d", r, f.p.Revision())
					}
					f.check(t, r)
					f.p.Reported(r, at(f.now+1), at(f.now+5))
				}
			},
			"": func(*rapid.T) { f.now++ },
		})
	})
}
