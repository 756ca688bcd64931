package fair_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/fair"
)

// TestScheduler_Share checks that keys that always wait get equal shares, except for the most expensive turns.
// The cost may be known before or after a turn.
func TestScheduler_Share(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const dearest = 1000
		keys := rapid.IntRange(2, 6).Draw(t, "keys")
		var turns fair.Scheduler[int]
		served := make([]int, keys)
		for k := range keys {
			turns.Join(k)
		}
		for range rapid.IntRange(1, 300).Draw(t, "turns") {
			cost := rapid.IntRange(1, dearest).Draw(t, "cost")
			known := rapid.IntRange(1, cost).Draw(t, "known before")
			k, ok := turns.Next(known)
			if !ok {
				t.Fatal("no key is next")
			}
			turns.Charge(k, cost-known)
			served[k] += cost
			if most, least := slices.Max(served), slices.Min(served); most-least > 2*dearest {
				t.Fatalf("served for %v: one has %d more than another", served, most-least)
			}
		}
	})
}

// TestScheduler_StarvesNoKey checks that a new key is served after at most one turn of each other key, for any
// number of earlier turns.
func TestScheduler_StarvesNoKey(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var turns fair.Scheduler[string]
		cost := rapid.Custom(func(t *rapid.T) int { return rapid.IntRange(1, 1<<30).Draw(t, "cost") })
		others := rapid.IntRange(1, 5).Draw(t, "others")
		for k := range others {
			turns.Join(fmt.Sprint("flood", k))
		}
		for range rapid.IntRange(0, 50).Draw(t, "turns before") {
			if k, _ := turns.Next(cost.Draw(t, "cost")); rapid.Bool().Draw(t, "leaves") {
				turns.Leave(k)
				turns.Join(k) // a key with one item at a time joins again
			}
		}
		turns.Join("late")
		had := map[string]int{}
		for {
			k, _ := turns.Next(cost.Draw(t, "cost"))
			if k == "late" {
				return
			}
			if had[k]++; had[k] > 1 {
				t.Fatalf("%s had two turns before a new key", k)
			}
		}
	})
}

// TestScheduler_RemembersServedShares checks that a key keeps its debt while others wait, even when it has no
// items.
func TestScheduler_RemembersServedShares(t *testing.T) {
	var turns fair.Scheduler[string]
	turns.Join("flood")
	turns.Join("other")
	if k, _ := turns.Next(1); k != "flood" {
		t.Fatalf("%s is first", k)
	}
	turns.Leave("flood")
	turns.Charge("flood", 1000)
	turns.Join("flood")
	for n := range 900 {
		if k, _ := turns.Next(1); k != "other" {
			t.Fatalf("after %d turns of the other one it is the turn of %s, which owes 1000", n, k)
		}
	}
	turns.Leave("other")
	if k, ok := turns.Next(1); !ok || k != "flood" {
		t.Errorf("%s, %v: no other key waits", k, ok)
	}
	turns.Leave("flood")
	if k, ok := turns.Next(1); ok {
		t.Errorf("%s: no key waits", k)
	}
	turns.Join("flood")
	turns.Join("other")
	if k, _ := turns.Next(1); k != "flood" {
		t.Errorf("%s is first: turns without other waiting keys must leave no debt", k)
	}
}

// TestScheduler_ForgetsIdleKeys checks that the number of waiting keys bounds the memory, and not the number of
// all keys so far.
func TestScheduler_ForgetsIdleKeys(t *testing.T) {
	var turns fair.Scheduler[int]
	turns.Join(-1)
	for k := range 100_000 {
		turns.Join(k)
		turns.Next(1)
		turns.Next(1) // each key had one turn
		turns.Leave(k)
	}
	if n := turns.Keys(); n > 200 {
		t.Errorf("%d places are kept of two that wait at a time", n)
	}
}

// naive is a simple and slow queue, for comparison.
type naive []entry

type entry struct {
	key    string
	id, n  int
	urgent bool
}

// push adds an entry. An urgent entry that may not overtake an earlier one becomes a normal one.
func (q naive) push(e entry) naive {
	e.urgent = e.urgent && !slices.ContainsFunc(q, func(o entry) bool { return o.key == e.key && !o.urgent && (o.id == e.id || o.id == 0) })
	return append(q, e)
}

// firstOf returns the entry of a key that has to be next.
func (q naive) firstOf(key string) entry {
	i := slices.IndexFunc(q, func(e entry) bool { return e.key == key && e.urgent })
	if i < 0 {
		i = slices.IndexFunc(q, func(e entry) bool { return e.key == key })
	}
	return q[i]
}

// TestQueue_UrgentFirstAndInOrder checks that urgent items of a key come first, but after earlier items of the
// same id or of the zero id. Each pushed item is popped once.
func TestQueue_UrgentFirstAndInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q fair.Queue[string, int, entry]
		var want naive
		n := 0
		pop := func(t *rapid.T) {
			waiting := map[string]bool{}
			for _, e := range want {
				waiting[e.key] = true
			}
			k, got, ok := q.Pop()
			if ok != (len(want) > 0) {
				t.Fatalf("popped %v of %d", ok, len(want))
			}
			if !ok {
				return
			}
			if k != got.key || !waiting[k] || got.n != want.firstOf(k).n {
				t.Fatalf("popped %+v for %s of %+v", got, k, want)
			}
			want = slices.DeleteFunc(want, func(e entry) bool { return e.n == got.n })
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				n++
				e := entry{
					key: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key"), id: rapid.IntRange(0, 3).Draw(t, "id"), n: n,
					urgent: rapid.Bool().Draw(t, "urgent"),
				}
				if e.id == 0 {
					e.urgent = false
				}
				q.Push(e.key, e.id, e.urgent, 1, e)
				want = want.push(e)
			},
			"pop": pop,
			"": func(t *rapid.T) {
				if q.Len() != len(want) {
					t.Fatalf("%d items, want %d", q.Len(), len(want))
				}
			},
		})
		for len(want) > 0 {
			pop(t)
		}
	})
}
