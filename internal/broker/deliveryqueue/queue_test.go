package deliveryqueue_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/broker/deliveryqueue"
)

func key(n int) deliveryqueue.Key {
	return deliveryqueue.Key{Cluster: "c", ResourceID: fmt.Sprint("w", n)}
}

func drain(m *deliveryqueue.Queue) (names []string) {
	for e, ok := m.Next(); ok; e, ok = m.Next() {
		names = append(names, e.ResourceID)
	}
	return names
}

func TestQueue_PostedAgainKeepsItsPosition(t *testing.T) {
	var m deliveryqueue.Queue
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

func TestQueue_AlternatesSpecsAndStatuses(t *testing.T) {
	var m deliveryqueue.Queue
	for i := range 3 {
		m.Post(key(i), uint64(i+1), 0)
		m.Post(key(10+i), uint64(i+1), deliveryqueue.Deletion)
		m.Answer(key(20+i), 1, 0)
	}
	want := []string{"w0", "w10", "w20", "w1", "w11", "w21", "w2", "w12", "w22"}
	if diff := cmp.Diff(want, drain(&m)); diff != "" {
		t.Error(diff)
	}
}

func TestQueue_DeletionOverUnsentSpecRequestsBoth(t *testing.T) {
	var m deliveryqueue.Queue
	m.Post(key(0), 1, 0)
	m.Post(key(0), 2, deliveryqueue.Deletion)
	m.Post(key(1), 3, deliveryqueue.Deletion)
	m.Post(key(1), 4, deliveryqueue.Deletion)
	got := map[string]deliveryqueue.Flags{}
	for e, ok := m.Next(); ok; e, ok = m.Next() {
		got[e.ResourceID] = e.Flags
	}
	want := map[string]deliveryqueue.Flags{"w0": deliveryqueue.Deletion | deliveryqueue.SpecFirst, "w1": deliveryqueue.Deletion}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestQueue_FreshChangeLeavesTheAnswer(t *testing.T) {
	var m deliveryqueue.Queue
	for i := range 5 {
		m.Answer(key(i), 1, 0)
	}
	m.Post(key(4), 9, 0)
	e, ok := m.Next()
	if want := (deliveryqueue.Entry{Key: key(4), Revision: 1}); !ok || e != want {
		t.Errorf("first entry %+v, want %+v", e, want)
	}
}

// TestQueue_AlternatesClusters: a cluster with many records, or with large ones that are posted again at once,
// delays another cluster by one entry at most.
func TestQueue_AlternatesClusters(t *testing.T) {
	m := deliveryqueue.Shared()
	flood := func(n int) deliveryqueue.Key {
		return deliveryqueue.Key{Cluster: "flood", ResourceID: fmt.Sprint("w", n)}
	}
	for i := range 100 {
		m.Post(flood(i), uint64(i+1), 0)
	}
	const quiet, large, small = 16, 200 << 10, 2 << 10
	for i := range quiet {
		m.Post(key(i), uint64(200+i), 0)
	}
	revision, sent, bytes := uint64(300), 0, 0
	for sent < quiet {
		e, ok := m.Next()
		if !ok {
			t.Fatalf("nothing is left, and %d of %d were sent", sent, quiet)
		}
		if e.Cluster != "flood" {
			m.Charge(e.Cluster, small)
			sent++
			continue
		}
		m.Charge(e.Cluster, large)
		bytes += large
		revision++
		m.Post(e.Key, revision, 0)
	}
	if bytes > 2*large {
		t.Errorf("%d bytes of the flood were sent before all of the other cluster", bytes)
	}
	if n := m.Len(); n != 100 {
		t.Errorf("%d entries are left", n)
	}
	for i := range 100 {
		m.Remove(flood(i))
	}
	m.Post(key(0), 1000, 0)
	if e, ok := m.Next(); !ok || e.Key != key(0) || m.Len() != 0 {
		t.Errorf("after all %+v, %v", e, ok)
	}
}

// TestQueue_SharedEqualsOneForEachCluster: the entries of a cluster and their order do not depend on the other
// clusters.
func TestQueue_SharedEqualsOneForEachCluster(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := deliveryqueue.Shared()
		apart := map[string]*deliveryqueue.Queue{"a": {}, "b": {}, "c": {}}
		revision := uint64(100)
		flag := rapid.SampledFrom([]deliveryqueue.Flags{0, 0, deliveryqueue.Deletion})
		k := rapid.Custom(func(t *rapid.T) deliveryqueue.Key {
			return deliveryqueue.Key{Cluster: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "cluster"), ResourceID: fmt.Sprint(rapid.IntRange(0, 5).Draw(t, "n"))}
		})
		size := func() (n int) {
			for _, o := range apart {
				n += o.Len()
			}
			return n
		}
		emptied := func(cluster string) { // an empty queue forgets which of its lists is next
			if apart[cluster].Len() == 0 {
				apart[cluster] = &deliveryqueue.Queue{}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"post": func(t *rapid.T) {
				revision++
				k, f := k.Draw(t, "key"), flag.Draw(t, "flags")
				m.Post(k, revision, f)
				apart[k.Cluster].Post(k, revision, f)
			},
			"answer": func(t *rapid.T) {
				k := k.Draw(t, "key")
				m.Answer(k, revision, 0)
				apart[k.Cluster].Answer(k, revision, 0)
			},
			"remove": func(t *rapid.T) {
				k := k.Draw(t, "key")
				m.Remove(k)
				apart[k.Cluster].Remove(k)
				emptied(k.Cluster)
			},
			"next": func(t *rapid.T) {
				had := size()
				e, ok := m.Next()
				if ok != (had > 0) {
					t.Fatalf("next %v of %d", ok, had)
				}
				if !ok {
					return
				}
				if want, _ := apart[e.Cluster].Next(); want != e {
					t.Fatalf("next is %+v, of this cluster alone %+v", e, want)
				}
				emptied(e.Cluster)
				m.Charge(e.Cluster, rapid.IntRange(0, 1<<20).Draw(t, "bytes"))
				if rapid.Bool().Draw(t, "returned") {
					m.Return(e)
					apart[e.Cluster].Return(e)
				}
			},
			"": func(t *rapid.T) {
				if m.Len() != size() {
					t.Fatalf("%d entries, want %d", m.Len(), size())
				}
				oldest := uint64(0)
				for _, o := range apart {
					if r, ok := o.Oldest(); ok && (oldest == 0 || r < oldest) {
						oldest = r
					}
				}
				if got, ok := m.Oldest(); ok != (size() > 0) || ok && got != oldest {
					t.Fatalf("oldest %d (%v), want %d", got, ok, oldest)
				}
			},
		})
	})
}

// naive is a simple model of a queue: one slice that is searched.
type naive struct {
	entries  []deliveryqueue.Entry // in order of arrival in their queue
	position int
}

func (n *naive) find(k deliveryqueue.Key) int {
	return slices.IndexFunc(n.entries, func(e deliveryqueue.Entry) bool { return e.Key == k })
}

func queueOf(f deliveryqueue.Flags) int {
	switch {
	case f&deliveryqueue.Deletion != 0:
		return 1
	case f&deliveryqueue.Resync != 0:
		return 2
	}
	return 0
}

func (n *naive) post(k deliveryqueue.Key, rev uint64, f deliveryqueue.Flags) {
	i := n.find(k)
	if i < 0 {
		n.entries = append(n.entries, deliveryqueue.Entry{Key: k, Revision: rev, Flags: f})
		return
	}
	e := n.entries[i]
	if f&deliveryqueue.Deletion != 0 && e.Flags&deliveryqueue.Deletion == 0 || e.Flags&deliveryqueue.SpecFirst != 0 {
		f |= deliveryqueue.SpecFirst
	}
	f |= e.Flags & deliveryqueue.Force
	moved := queueOf(f) != queueOf(e.Flags)
	e.Flags = f
	if moved {
		n.entries = append(slices.Delete(n.entries, i, i+1), e)
	} else {
		n.entries[i] = e
	}
}

func (n *naive) answer(k deliveryqueue.Key, rev uint64, f deliveryqueue.Flags) {
	if i := n.find(k); i >= 0 {
		n.entries[i].Flags |= f & (deliveryqueue.SpecFirst | deliveryqueue.Force)
		return
	}
	n.entries = append(n.entries, deliveryqueue.Entry{Key: k, Revision: rev, Flags: f | deliveryqueue.Resync})
}

func (n *naive) giveBack(e deliveryqueue.Entry) {
	i := n.find(e.Key)
	if i < 0 {
		n.entries = append(n.entries, e)
		return
	}
	n.entries[i].Flags |= e.Flags & (deliveryqueue.SpecFirst | deliveryqueue.Force)
	n.entries[i].Revision = min(n.entries[i].Revision, e.Revision)
}

func (n *naive) next() (deliveryqueue.Entry, bool) {
	for range 3 {
		q := n.position
		n.position = (n.position + 1) % 3
		for i, e := range n.entries {
			if queueOf(e.Flags) == q {
				n.entries = slices.Delete(n.entries, i, i+1)
				return e, true
			}
		}
	}
	return deliveryqueue.Entry{}, false
}

func (n *naive) remove(k deliveryqueue.Key) {
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

func TestQueue_EqualsTheNaiveOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m deliveryqueue.Queue
		var n naive
		revision := uint64(100)
		flag := rapid.SampledFrom([]deliveryqueue.Flags{0, 0, deliveryqueue.Deletion})
		k := rapid.Custom(func(t *rapid.T) deliveryqueue.Key { return key(rapid.IntRange(0, 12).Draw(t, "n")) })
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
					f |= deliveryqueue.SpecFirst
				}
				if rapid.Bool().Draw(t, "force") {
					f |= deliveryqueue.Force
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

func TestQueue_MemoryIsBoundByWorks(t *testing.T) {
	var m deliveryqueue.Queue
	const works = 100
	allocs := testing.AllocsPerRun(10, func() {
		for i := range 100_000 {
			m.Post(deliveryqueue.Key{Cluster: "c", ResourceID: ids[i%works]}, uint64(i), 0)
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

func BenchmarkQueue_PostNext(b *testing.B) {
	var m deliveryqueue.Queue
	b.ReportAllocs()
	revision := uint64(0)
	for b.Loop() {
		for _, id := range ids {
			revision++
			m.Post(deliveryqueue.Key{Cluster: "c", ResourceID: id}, revision, 0)
		}
		for _, ok := m.Next(); ok; _, ok = m.Next() {
		}
	}
}
