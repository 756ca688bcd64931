package denylist_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/broker/changefeed"
	"github.com/hawser-io/hawser/internal/broker/denylist"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit"
)

var agent1 = identity.Identity{Role: identity.Agent, Name: "cluster1"}

func subject(t *testing.T, s string) denylist.Subject {
	t.Helper()
	parsed, err := denylist.ParseSubject(s)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func TestParseSubject(t *testing.T) {
	for in, want := range map[string]string{
		"agent/cluster1": "agent/cluster1", "source/a/b": "source/a/b", "0A:1b": "a1b", "00ff": "ff", "DEADBEEF": "deadbeef",
	} {
		if got := subject(t, in); got.String() != want || (got.Serial == "") != (got.Identity != identity.Identity{}) {
			t.Errorf("%q is %+v, want %s", in, got, want)
		}
	}
	for _, in := range []string{"", "cluster1", "agent/", "/x", "broker/b", "agent/a\nb", "0", "-5", "+5", "1_0", ":", string(make([]byte, 600))} {
		if got, err := denylist.ParseSubject(in); err == nil {
			t.Errorf("%q is %+v", in, got)
		}
	}
}

// FuzzParseSubject: a parsed subject means the same when it is formatted and parsed again.
func FuzzParseSubject(f *testing.F) {
	for _, s := range []string{"agent/cluster1", "0A:1b", "operator/", "1_0", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := denylist.ParseSubject(s)
		if err != nil {
			return
		}
		if again, err := denylist.ParseSubject(got.String()); err != nil || again != got {
			t.Errorf("%q is %+v, and %q is %+v, %v", s, got, got.String(), again, err)
		}
	})
}

// TestList_IsInTheStore: a denial survives a restart until it is allowed. The callbacks of a change see the new
// list.
func TestList_IsInTheStore(t *testing.T) {
	s := mem.Open(mem.Options{NewID: testkit.NewIDs("store")})
	defer s.Close()
	open := func() *denylist.List {
		shared := s.Share()
		t.Cleanup(func() { _ = shared.Close() })
		return testkit.Denylist(t, shared)
	}
	l := open()
	seen := 0
	l.OnChange(func() { seen = len(l.All()) })
	at := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	want := []denylist.Denial{
		{Subject: denylist.Subject{Serial: "a1b"}, By: "olga", At: at},
		{Subject: denylist.Subject{Identity: agent1}, By: "olga", At: at, Reason: "lost"},
	}
	for _, d := range want {
		if err := l.Deny(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	if seen != 2 {
		t.Errorf("the callback saw %d denials", seen)
	}
	l = open()
	if d := cmp.Diff(want, l.All()); d != "" {
		t.Errorf("after a restart (-want +got):\n%s", d)
	}
	for name, c := range map[string]struct {
		id     identity.Identity
		serial string
		denied bool
	}{
		"the identity":    {agent1, "77", true},
		"the certificate": {identity.Identity{Role: identity.Agent, Name: "cluster2"}, "a1b", true},
		"another":         {identity.Identity{Role: identity.Source, Name: "cluster1"}, "77", false},
		"without one":     {identity.Identity{Role: identity.Source, Name: "cluster1"}, "", false},
	} {
		if _, denied := l.Of(c.id, c.serial); denied != c.denied {
			t.Errorf("%s: denied is %v", name, denied)
		}
	}
	for _, was := range []bool{true, false} {
		if known, err := l.Allow(t.Context(), subject(t, "agent/cluster1")); known != was || err != nil {
			t.Errorf("allowed: %v, %v", known, err)
		}
	}
	if got := open().All(); len(got) != 1 || got[0].Subject.Serial != "a1b" {
		t.Errorf("left: %+v", got)
	}
}

// TestList_EarliestOnlyGrows: the later of two times of a cluster is kept, in any order and after a restart.
// The callbacks of a change see the later time.
func TestList_EarliestOnlyGrows(t *testing.T) {
	s := mem.Open(mem.Options{NewID: testkit.NewIDs("store")})
	defer s.Close()
	l := testkit.Denylist(t, s)
	changes := 0
	l.OnChange(func() { changes++ })
	t1 := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	t2, t3 := t1.Add(time.Second), t1.Add(2*time.Second)
	for _, at := range []time.Time{t2, t1, t2, t3, t1} {
		if err := l.Raise(t.Context(), map[string]time.Time{"c1": at, "c2": t1}); err != nil {
			t.Fatal(err)
		}
	}
	shared := s.Share()
	defer shared.Close()
	again := testkit.Denylist(t, shared)
	for _, l := range []*denylist.List{l, again} {
		if got := []time.Time{l.Earliest("c1"), l.Earliest("c2"), l.Earliest("c3")}; !got[0].Equal(t3) || !got[1].Equal(t1) || !got[2].IsZero() {
			t.Errorf("from %v", got)
		}
	}
	if changes != 2 {
		t.Errorf("%d changes", changes)
	}
}

// TestList_OfTwoBrokers: two brokers over one store have one denylist. A denial by one is in force at the other, and
// of two times that both raise at once the later one stays.
func TestList_OfTwoBrokers(t *testing.T) {
	s := mem.Open(mem.Options{NewID: testkit.NewIDs("store")})
	shared := s.Share()
	defer s.Close()
	defer shared.Close()
	one, other := testkit.Denylist(t, s), testkit.Denylist(t, shared)
	changed := make(chan struct{}, 100)
	other.OnChange(func() { changed <- struct{}{} })
	if err := one.Deny(t.Context(), denylist.Denial{Subject: denylist.Subject{Identity: agent1}}); err != nil {
		t.Fatal(err)
	}
	<-changed
	if _, denied := other.Of(agent1, ""); !denied {
		t.Error("a denial is not in force at another broker")
	}
	if known, err := other.Allow(t.Context(), denylist.Subject{Identity: agent1}); !known || err != nil {
		t.Errorf("allowed at the other broker: %v, %v", known, err)
	}
	if known, err := one.Allow(t.Context(), denylist.Subject{Identity: agent1}); known || err != nil {
		t.Errorf("allowed again: %v, %v", known, err)
	}
	begin := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	raised := make(chan error, 2)
	for i, l := range []*denylist.List{one, other} {
		go func() {
			var err error
			for n := range 20 {
				err = errors.Join(err, l.Raise(t.Context(), map[string]time.Time{"c1": begin.Add(time.Duration(2*n+i) * time.Second)}))
			}
			raised <- err
		}()
	}
	if err := errors.Join(<-raised, <-raised); err != nil {
		t.Fatal(err)
	}
	if b, _ := s.Bookmark("earliest/c1"); string(b.Value) != begin.Add(39*time.Second).Format(time.RFC3339Nano) {
		t.Errorf("the earliest issue time is %s", b.Value)
	}
}

// TestList_DamagedEntry: a denial that cannot be read is an error and is not ignored.
func TestList_DamagedEntry(t *testing.T) {
	s := mem.Open(mem.Options{NewID: testkit.NewIDs("store")})
	defer s.Close()
	for name, value := range map[string]string{"denied/agent/c": "{", "denied/invalid": "{}", "earliest/c1": "soon"} {
		if err := store.WriteBookmarks(t.Context(), s, map[string][]byte{name: []byte(value)}); err != nil {
			t.Fatal(err)
		}
		if _, err := denylist.New(s, changefeed.New(s)); err == nil {
			t.Errorf("%s: %s is read", name, value)
		}
		if err := store.WriteBookmarks(t.Context(), s, map[string][]byte{name: nil}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestList_IgnoresUnstoredDenial: a denial that cannot be stored has no effect.
func TestList_IgnoresUnstoredDenial(t *testing.T) {
	s := mem.Open(mem.Options{NewID: testkit.NewIDs("store")})
	l := testkit.Denylist(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Deny(t.Context(), denylist.Denial{Subject: denylist.Subject{Identity: agent1}}); err == nil {
		t.Error("kept in a store that is closed")
	}
	if len(l.All()) != 0 {
		t.Error("the entry is in force")
	}
}
