package route_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/broker/route"
)

func key(n int) route.Key { return route.Key{Cluster: "c", ResourceID: fmt.Sprint("w", n)} }

func drain(m *route.Mailbox) (names []string) {
	for e, ok := m.Next(); ok; e, ok = m.Next() {
		names = append(names, e.ResourceID)
	}
	return names
}

func TestMailbox_PostedAgainKeepsItsPlace(t *testing.T) {
	var m route.Mailbox
	for i := range 3 {
		m.Post(key(i), uint64(i+1), 0)
	}
	m.Post(key(0), 4, 0)
	if old, ok := m.Oldest(); !ok || old != 1 {
		t.Errorf("oldest unsent revision %d (%v), want 1", old, ok)
	}
	if diff := cmp.Diff([]string{"w0", "w1", "w2"}, drain(&m)); diff != "" {
		t.Error(diff)
	}
}

func TestMailbox_QueuesTakeTurns(t *testing.T) {
	var m route.Mailbox
	for i := range 3 {
		m.Post(key(i), uint64(i+1), 0)
		m.Post(key(10+i), uint64(i+1), route.Deletion)
		m.Answer(key(20+i), 1, 0)
	}
	want := []string{"w0", "w10", "w20", "w1", "w11", "w21", "w2", "w12", "w22"}
	if diff := cmp.Diff(want, drain(&m)); diff != "" {
		t.Error(diff)
	}
}

func TestMailbox_DeletionOverUnsentSpecAsksForBoth(t *testing.T) {
	var m route.Mailbox
	m.Post(key(0), 1, 0)
	m.Post(key(0), 2, route.Deletion)
	m.Post(key(1), 3, route.Deletion)
	m.Post(key(1), 4, route.Deletion)
	got := map[string]route.Flags{}
	for e, ok := m.Next(); ok; e, ok = m.Next() {
		got[e.ResourceID] = e.Flags
	}
	want := map[string]route.Flags{"w0": route.Deletion | route.SpecFirst, "w1": route.Deletion}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestMailbox_FreshChangeLeavesTheAnswer(t *testing.T) {
	var m route.Mailbox
	for i := range 5 {
		m.Answer(key(i), 1, 0)
	}
	m.Post(key(4), 9, 0)
	e, ok := m.Next()
	if want := (route.Entry{Key: key(4), Revision: 1}); !ok || e != want {
		t.Errorf("first entry %+v, want %+v", e, want)
	}
}

// naive is a mailbox written for readers only: one slice, searched.
type naive struct {
	entries []route.Entry // in order of arrival in their queue
	turn    int
}

func (n *naive) find(k route.Key) int {
	return slices.IndexFunc(n.entries, func(e route.Entry) bool { return e.Key == k })
}

func queueOf(f route.Flags) int {
	switch {
	case f&route.Deletion != 0:
		return 1
	case f&route.Resync != 0:
		return 2
	}
	return 0
}

func (n *naive) post(k route.Key, rev uint64, f route.Flags) {
	i := n.find(k)
	if i < 0 {
		n.entries = append(n.entries, route.Entry{Key: k, Revision: rev, Flags: f})
		return
	}
	e := n.entries[i]
	if f&route.Deletion != 0 && e.Flags&route.Deletion == 0 || e.Flags&route.SpecFirst != 0 {
		f |= route.SpecFirst
	}
	f |= e.Flags & route.Overrule
	moved := queueOf(f) != queueOf(e.Flags)
	e.Flags = f
	if moved {
		n.entries = append(slices.Delete(n.entries, i, i+1), e)
	} else {
		n.entries[i] = e
	}
}

func (n *naive) answer(k route.Key, rev uint64, f route.Flags) {
	if i := n.find(k); i >= 0 {
		n.entries[i].Flags |= f & (route.SpecFirst | route.Overrule)
		return
	}
	n.entries = append(n.entries, route.Entry{Key: k, Revision: rev, Flags: f | route.Resync})
}

func (n *naive) giveBack(e route.Entry) {
	i := n.find(e.Key)
	if i < 0 {
		n.entries = append(n.entries, e)
		return
	}
	n.entries[i].Flags |= e.Flags & (route.SpecFirst | route.Overrule)
	n.entries[i].Revision = min(n.entries[i].Revision, e.Revision)
}

func (n *naive) next() (route.Entry, bool) {
	for range 3 {
		q := n.turn
		n.turn = (n.turn + 1) % 3
		for i, e := range n.entries {
			if queueOf(e.Flags) == q {
				n.entries = slices.Delete(n.entries, i, i+1)
				return e, true
			}
		}
	}
	return route.Entry{}, false
}

func (n *naive) remove(k route.Key) {
	if i := n.find(k); i >= 0 {
		n.entries = slices.Delete(n.entries, i, i+1)
	}
}

func (n *naive) oldest() (rev uint64) {
	for i, e := range n.entries {
		if i == 0 || e.Revision < rev {
			rev = e.Revision
		}
	}
	return rev
}

func TestMailbox_EqualsTheNaiveOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m route.Mailbox
		var n naive
		revision := uint64(100)
		flag := rapid.SampledFrom([]route.Flags{0, 0, route.Deletion})
		k := rapid.Custom(func(t *rapid.T) route.Key { return key(rapid.IntRange(0, 12).Draw(t, "n")) })
		t.Repeat(map[string]func(*rapid.T){
			"post": func(t *rapid.T) {
				revision++
				k, f := k.Draw(t, "key"), flag.Draw(t, "flags")
				m.Post(k, revision, f)
				n.post(k, revision, f)
			},
			"post what is older": func(t *rapid.T) {
				k, f := k.Draw(t, "key"), flag.Draw(t, "flags")
				rev := rapid.Uint64Range(1, revision).Draw(t, "revision")
				m.Post(k, rev, f)
				n.post(k, rev, f)
			},
			"answer": func(t *rapid.T) {
				k, f := k.Draw(t, "key"), flag.Draw(t, "flags")
				if f != 0 && rapid.Bool().Draw(t, "spec first") {
					f |= route.SpecFirst
				}
				if rapid.Bool().Draw(t, "overrule") {
					f |= route.Overrule
				}
				rev := rapid.Uint64Range(1, revision).Draw(t, "revision")
				m.Answer(k, rev, f)
				n.answer(k, rev, f)
			},
			"next": func(t *rapid.T) {
				want, wantOK := n.next()
				got, ok := m.Next()
				if ok != wantOK || got != want {
					t.Fatalf("next is %+v (%v), want %+v (%v)", got, ok, want, wantOK)
				}
			},
			"take and return": func(t *rapid.T) {
				want, wantOK := n.next()
				got, ok := m.Next()
				if ok != wantOK || got != want {
					t.Fatalf("next is %+v (%v), want %+v (%v)", got, ok, want, wantOK)
				}
				if !ok {
					return
				}
				if rapid.Bool().Draw(t, "posted meanwhile") {
					revision++
					m.Post(got.Key, revision, 0)
					n.post(got.Key, revision, 0)
				}
				m.Return(got)
				n.giveBack(got)
			},
			"remove": func(t *rapid.T) {
				k := k.Draw(t, "key")
				m.Remove(k)
				n.remove(k)
			},
			"drain": func(t *rapid.T) {
				for {
					want, wantOK := n.next()
					got, ok := m.Next()
					if ok != wantOK || got != want {
						t.Fatalf("next is %+v (%v), want %+v (%v)", got, ok, want, wantOK)
					}
					if !ok {
						return
					}
				}
			},
			"": func(t *rapid.T) {
				if m.Len() != len(n.entries) {
					t.Fatalf("%d entries, want %d", m.Len(), len(n.entries))
				}
				got, ok := m.Oldest()
				if want := n.oldest(); ok != (len(n.entries) > 0) || ok && got != want {
					t.Fatalf("oldest %d (%v), want %d", got, ok, want)
				}
			},
		})
	})
}

func TestMailbox_MemoryIsBoundByWorks(t *testing.T) {
	var m route.Mailbox
	const works = 100
	allocs := testing.AllocsPerRun(10, func() {
		for i := range 100_000 {
			m.Post(route.Key{Cluster: "c", ResourceID: ids[i%works]}, uint64(i), 0)
		}
	})
	if m.Len() != works || allocs > 0 {
		t.Errorf("%d entries and %.0f allocations after posting %d works again and again", m.Len(), allocs, works)
	}
}

var ids = func() (ids []string) {
	for i := range 100 {
		ids = append(ids, fmt.Sprintf("28e8bfbf-1292-522f-999a-%012d", i))
	}
	return ids
}()

func BenchmarkMailbox_PostNext(b *testing.B) {
	var m route.Mailbox
	b.ReportAllocs()
	revision := uint64(0)
	for b.Loop() {
		for _, id := range ids {
			revision++
			m.Post(route.Key{Cluster: "c", ResourceID: id}, revision, 0)
		}
		for _, ok := m.Next(); ok; _, ok = m.Next() {
		}
	}
}
