package changefeed_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/broker/changefeed"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/testkit"
)

func set(t *testing.T, s store.Store, name string) uint64 {
	t.Helper()
	if err := store.WriteBookmarks(t.Context(), s, map[string][]byte{name: []byte("v")}); err != nil {
		t.Fatal(err)
	}
	return s.Head().Revision
}

// passing is a store that records what its reader has passed.
type passing struct {
	store.Store
	passed []uint64
}

func (p *passing) Passed(revision uint64) {
	p.passed = append(p.passed, revision)
	p.Store.Passed(revision)
}

// TestFollower: each part gets all changes since the follower was made, in order, the first part first. Await
// returns when all parts have them. The store gets the position.
func TestFollower(t *testing.T) {
	s := &passing{Store: mem.Open(mem.Options{NewID: testkit.NewIDs("store")})}
	defer s.Close()
	set(t, s, "before")
	f := changefeed.New(s)
	var got []string
	for _, part := range []string{"first", "second"} {
		f.Add(func(changes []store.Change) error {
			for _, c := range changes {
				got = append(got, part+" "+c.Key.ResourceID)
			}
			return nil
		})
	}
	if err := f.Await(t.Context(), 1); err != nil {
		t.Errorf("at the head before Run: %v", err)
	}
	set(t, s, "a")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	if err := f.Await(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if err := f.Await(t.Context(), set(t, s, "b")); err != nil {
		t.Fatal(err)
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	if err := f.Await(gone, 9); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has left: %v", err)
	}
	waiting := make(chan error, 1)
	go func() { waiting <- f.Await(t.Context(), 9) }()
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
	if err := <-waiting; !errors.Is(err, store.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
	if d := cmp.Diff([]string{"first a", "second a", "first b", "second b"}, got); d != "" {
		t.Errorf("changes (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]uint64{2, 3}, s.passed); d != "" {
		t.Errorf("passed (-want +got):\n%s", d)
	}
}

// TestFollower_EndsWithAnError: a part that cannot read a change ends the follower. The later parts do not get the
// change.
func TestFollower_EndsWithAnError(t *testing.T) {
	s := mem.Open(mem.Options{NewID: testkit.NewIDs("store")})
	defer s.Close()
	f := changefeed.New(s)
	unreadable := errors.New("unreadable")
	f.Add(func([]store.Change) error { return unreadable })
	f.Add(func([]store.Change) error { t.Error("the next part gets the change"); return nil })
	at := set(t, s, "a")
	if err := f.Run(t.Context()); !errors.Is(err, unreadable) {
		t.Errorf("ended with %v", err)
	}
	if err := f.Await(t.Context(), at); !errors.Is(err, store.ErrClosed) {
		t.Errorf("await: %v", err)
	}
}
