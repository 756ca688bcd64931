package broker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/broker/store/storetest"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// slowStore is a store whose commits wait for a token each.
type slowStore struct {
	store.Store
	tokens  chan error // error that the commit returns; nil: it commits
	batches [][]store.Op
}

func (s *slowStore) Commit(ctx context.Context, ops []store.Op) ([]store.Outcome, error) {
	s.batches = append(s.batches, append([]store.Op(nil), ops...))
	if err := <-s.tokens; err != nil {
		return nil, err
	}
	return s.Store.Commit(ctx, ops)
}

// answer lets up to n commits succeed, if there are as many.
func (s *slowStore) answer(n int) {
	for range n {
		synctest.Wait()
		select {
		case s.tokens <- nil:
		default:
		}
	}
	synctest.Wait()
}

func inSlowWorld(t *testing.T, cfg broker.Config, test func(w *world, s *slowStore)) {
	t.Helper()
	slow := &slowStore{}
	wrap := func(s store.Store) store.Store {
		slow.Store, slow.tokens = s, make(chan error)
		return slow
	}
	inWrapped(t, cfg, wrap, func(w *world) { test(w, slow) })
}

// published is the result of a Publish.
type published struct {
	receipt transport.Receipt
	err     error
}

func (w *world) begin(ctx context.Context, p transport.Peer, event []byte) <-chan published {
	done := make(chan published, 1)
	go func() { // ends when the publish returns; done has a buffer
		r, err := w.Publish(ctx, p, event, "")
		done <- published{r, err}
	}()
	synctest.Wait()
	return done
}

func pending(done <-chan published) bool {
	synctest.Wait()
	return len(done) == 0
}

// TestCommit_AcknowledgedOnlyWhenWritten checks that publishes are acknowledged after they are written, and are
// written together (I7).
func TestCommit_AcknowledgedOnlyWhenWritten(t *testing.T) {
	inSlowWorld(t, broker.Config{}, func(w *world, s *slowStore) {
		source := w.source("src")
		first := w.begin(w.Context(), source, work{id: "first", version: 1}.event())
		var rest []<-chan published
		for i := range 10 {
			rest = append(rest, w.begin(w.Context(), source, work{id: fmt.Sprint("w", i), version: 1}.event()))
		}
		if !pending(first) || !pending(rest[0]) {
			t.Error("answered before the commit returned")
		}
		s.tokens <- nil
		if p := <-first; p.err != nil || p.receipt.Outcome != codec.OutcomeAccepted {
			t.Errorf("first: %+v", p)
		}
		for _, done := range rest {
			if !pending(done) {
				t.Error("answered before its own commit returned")
			}
		}
		s.tokens <- nil
		for _, done := range rest {
			if p := <-done; p.err != nil {
				t.Errorf("%+v", p)
			}
		}
		if len(s.batches) != 2 || len(s.batches[1]) != 10 {
			t.Errorf("%d commits, the second of %d operations; want 2 and 10", len(s.batches), len(s.batches[1]))
		}
	})
}

// TestCommit_FailureAcknowledgesNothing checks that a failed commit acknowledges no publish.
func TestCommit_FailureAcknowledgesNothing(t *testing.T) {
	inSlowWorld(t, broker.Config{}, func(w *world, s *slowStore) {
		source := w.source("src")
		agent := w.open(w.agentOf(s, "c1"), nil)
		for _, c := range []struct {
			err  error
			code transport.Code
		}{
			{errors.New("no space left on device /var/lib/secret"), transport.CodeInternal},
			{store.ErrReadOnly, transport.CodeUnavailable},
			{store.ErrClosed, transport.CodeUnavailable},
		} {
			done := w.begin(w.Context(), source, work{version: 1}.event())
			s.tokens <- c.err
			e := w.refused((<-done).err, c.code)
			if e.Next != transport.NextBackOff || e.Delay <= 0 || strings.Contains(e.Message+e.Hint, "secret") {
				t.Errorf("%v: %+v", c.err, e)
			}
			if w.Ready() == nil {
				t.Errorf("%v: ready after a failed commit", c.err)
			}
		}
		done := w.begin(w.Context(), source, work{version: 1}.event())
		s.tokens <- nil
		if p := <-done; p.err != nil {
			t.Errorf("%+v", p)
		}
		if err := w.Ready(); err != nil {
			t.Errorf("after a commit that worked: %v", err)
		}
		agent.expect("spec create_request w1 v1")
	})
}

// agentOf returns the peer of an agent whose cluster is known, so that its subscription writes nothing.
func (w *world) agentOf(s *slowStore, cluster string) transport.Peer {
	w.Helper()
	if err := storetest.Bind(w.Context(), s.Store, codec.ManifestBundles, cluster, ""); err != nil {
		w.Fatal(err)
	}
	return w.agent(cluster)
}

// TestCommit_CallersGiveUp checks that a caller waits only as long as its context.
func TestCommit_CallersGiveUp(t *testing.T) {
	inSlowWorld(t, broker.Config{}, func(w *world, s *slowStore) {
		ctx, cancel := context.WithTimeout(w.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		done := w.begin(ctx, w.source("src"), work{version: 1}.event())
		w.wantCode((<-done).err, transport.CodeDeadline)
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("gave up after %v", took)
		}
		ctx, cancel = context.WithCancel(w.Context())
		done = w.begin(ctx, w.source("src"), work{version: 2}.event())
		cancel()
		w.wantCode((<-done).err, transport.CodeUnavailable)
		s.tokens <- nil // queued ops are written although their callers gave up
		s.tokens <- nil
		synctest.Wait()
		if r := w.Store.Head().Revision; r != 2 {
			t.Errorf("revision %d, want 2", r)
		}
	})
}

// TestCommit_FloodIsRefusedAndOthersAreNot checks that a client above its share gets a retry delay. Another
// client still is in the next commit (I6).
func TestCommit_FloodIsRefusedAndOthersAreNot(t *testing.T) {
	inSlowWorld(t, broker.Config{MaxEventBytes: 16 << 10, QueueBytes: 256 << 10}, func(w *world, s *slowStore) {
		flood := w.source("flood")
		first := w.begin(w.Context(), flood, work{source: "flood", id: "first", version: 1}.event())
		var waiting []<-chan published
		var refused *transport.Error
		for i := range 1000 {
			done := w.begin(w.Context(), flood, work{source: "flood", id: fmt.Sprint("w", i), version: 1, data: `"` + strings.Repeat("x", 10<<10) + `"`}.event())
			if !pending(done) {
				refused = w.refused((<-done).err, transport.CodeOverloaded)
				break
			}
			waiting = append(waiting, done)
		}
		if refused == nil || refused.Next != transport.NextBackOff || refused.Delay <= 0 {
			t.Fatalf("%d publishes were queued, refused with %+v", len(waiting), refused)
		}
		other := w.begin(w.Context(), w.source("src"), work{id: "other", version: 1}.event())
		s.tokens <- nil
		<-first
		s.tokens <- nil
		if p := <-other; p.err != nil {
			t.Errorf("other: %+v", p)
		}
		if got := s.batches[1][1].Key.ResourceID; got != "other" {
			t.Errorf("second of the batch is %q, want the other client's", got)
		}
		for _, done := range waiting {
			if p := <-done; p.err != nil {
				t.Errorf("%+v", p)
			}
		}
		again := w.begin(w.Context(), flood, work{source: "flood", id: "again", version: 1}.event())
		s.tokens <- nil
		if p := <-again; p.err != nil {
			t.Errorf("after the queue was written: %+v", p)
		}
	})
}

// TestCommit_PanicIsAnAnswer checks that a panic ends only its own call, with an error.
func TestCommit_PanicIsAnAnswer(t *testing.T) {
	inWrapped(t, broker.Config{}, func(s store.Store) store.Store { return panicking{s} }, func(w *world) {
		e := w.refused(func() error {
			_, err := w.Publish(w.Context(), w.source("src"), releaseOf(t, "src", "c1"), "")
			return err
		}(), transport.CodeInternal)
		if e.Delay <= 0 {
			t.Errorf("%+v", e)
		}
		w.put(w.source("src"), work{version: 1}.event())
	})
}

type panicking struct{ store.Store }

func (panicking) Scan(context.Context, store.Scope, func(store.Meta) error) error { panic("bug") }

// TestDrain_RejectsWritesAndEnds checks that all streams end at once with the reason, queued events are written, and
// new calls are rejected.
func TestDrain_RejectsWritesAndEnds(t *testing.T) {
	inSlowWorld(t, broker.Config{DrainTimeout: 10 * time.Second}, func(w *world, s *slowStore) {
		var taps []*tap
		for i := range 20 {
			taps = append(taps, w.open(w.agentOf(s, fmt.Sprint("c", i)), nil))
		}
		first := w.begin(w.Context(), w.source("src"), work{id: "a", version: 1}.event())
		queued := w.begin(w.Context(), w.source("src"), work{id: "b", version: 1}.event())
		start := time.Now()
		stopped := make(chan struct{})
		go func() { w.Stop(); close(stopped) }() // the result is received below
		synctest.Wait()
		if w.Ready() == nil {
			t.Error("ready while draining")
		}
		_, err := w.Publish(w.Context(), w.source("src"), work{version: 1}.event(), "")
		if e := w.refused(err, transport.CodeUnavailable); e.Next != transport.NextBackOff || e.Delay <= 0 {
			t.Errorf("publish while draining: %+v", e)
		}
		w.wantCode(<-w.open(w.agent("late"), nil).ended, transport.CodeUnavailable)
		for _, s := range taps {
			if e := w.refused(<-s.ended, transport.CodeUnavailable); e.Next != transport.NextBackOff || e.Delay <= 0 {
				t.Errorf("stream: %+v", e)
			}
		}
		s.tokens <- nil
		s.tokens <- nil
		for _, done := range []<-chan published{first, queued} {
			if p := <-done; p.err != nil {
				t.Errorf("the queued events: %+v", p)
			}
		}
		<-stopped
		if took := time.Since(start); took != 0 {
			t.Errorf("ended after %v, want at once", took)
		}
	})
}

func TestDrain_StopsAtTheDeadline(t *testing.T) {
	inWorld(t, broker.Config{DrainTimeout: 5 * time.Second}, func(w *world) {
		gate := make(chan struct{})
		stuck := w.open(w.agent("c1"), func(_ *transport.RawSubscription, s *tap) { s.hold = func() { <-gate } })
		w.put(w.source("src"), work{version: 1}.event())
		synctest.Wait()
		start := time.Now()
		w.Stop()
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("stopped after %v", took)
		}
		close(gate)
		w.wantCode(<-stuck.ended, transport.CodeUnavailable)
	})
}

// TestCommit_ReleaseComesAfterQueuedWrites checks a source that gives up waiting for the answer to a publish,
// and then releases the cluster. No record is left.
func TestCommit_ReleaseComesAfterQueuedWrites(t *testing.T) {
	inSlowWorld(t, broker.Config{}, func(w *world, s *slowStore) {
		source := w.source("src")
		ctx, giveUp := context.WithCancel(w.Context())
		published := w.begin(ctx, source, work{id: "w1", version: 1}.event())
		giveUp()
		<-published
		released := w.begin(w.Context(), source, releaseOf(t, "src", "c1"))
		for pending(released) {
			s.tokens <- nil
		}
		if r := <-released; r.err != nil || r.receipt.Outcome != codec.OutcomeAccepted {
			t.Errorf("release: %+v", r)
		}
		key := store.Key{DataType: codec.ManifestBundles, Cluster: "c1", ResourceID: "w1"}
		if r, err := w.Store.Get(w.Context(), key); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("got %+v, %v, want no record", r.Meta, err)
		}
	})
}

// fatalStore is a store that cannot continue.
type fatalStore struct {
	store.Store
	fatal chan error
}

func (s *fatalStore) Fatal() <-chan error { return s.fatal }

func (s *fatalStore) Commit(context.Context, []store.Op) ([]store.Outcome, error) {
	return nil, fmt.Errorf("%w: the disk failed", store.ErrReadOnly)
}

// TestRun_EndsWithItsStore checks that a store that cannot continue ends the broker with its error. Publishes
// that wait for a commit are rejected.
func TestRun_EndsWithItsStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fatalStore{Store: mem.Open(mem.Options{NewID: testkit.NewIDs("store")}), fatal: make(chan error, 1)}
		b, err := broker.New(broker.Config{Store: s, NewID: testkit.NewIDs("id"), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- b.Run(context.Background()) }()
		peer := transport.Peer{Role: "source", Name: "src", Addr: "test", Conn: 1}
		_, err = b.Publish(t.Context(), peer, work{version: 1}.event(), "")
		if transport.CodeOf(err) != transport.CodeUnavailable {
			t.Errorf("a publish that was not committed: %v", err)
		}
		cause := errors.New("store: sync 000004.log: input/output error")
		s.fatal <- cause
		if err := <-done; !errors.Is(err, cause) {
			t.Errorf("the broker ended with %v", err)
		}
		_, err = b.Publish(t.Context(), peer, work{version: 1}.event(), "")
		if transport.CodeOf(err) != transport.CodeUnavailable {
			t.Errorf("a publish after the end: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}
