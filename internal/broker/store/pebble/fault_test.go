package pebble

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/storetest"
	"github.com/hawser-io/hawser/pkg/codec"
)

// After a disk failure, goroutines of the engine wait for the disk until the process ends. So these tests leak
// goroutines.

const dir = "store"

// tiny returns options with which flushes, compactions and new logs are frequent.
func tiny(fs vfs.FS) Options {
	return Options{Dir: dir, FS: fs, memTableBytes: 64 << 10, CacheBytes: 1 << 20}
}

func mustOpen(t *testing.T, o Options) *Store {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return s
}

func mustClose(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

func testKey(n int) store.Key {
	return store.Key{DataType: codec.ManifestBundles, Cluster: "c1", ResourceID: fmt.Sprintf("u%d", n)}
}

// content returns an event that names its work and version, so that a test detects any other content.
func content(n int, version int64) []byte {
	return []byte(strings.Repeat(fmt.Sprintf("work %d version %d. ", n, version), 100))
}

func testOp(n int, version int64) store.Op {
	return store.Op{
		Kind: store.PutSpec, Key: testKey(n), Owner: "s1", Name: fmt.Sprintf("work-%d", n), Action: codec.UpdateRequest,
		Version: version, Tag: codec.TagOf(false, version, fmt.Sprint(n), nil), Event: content(n, version),
		At: time.Unix(1795000000, 0).UTC(),
	}
}

// acked is the knowledge of a publisher: for each work, the last acknowledged version and the last tried
// version. It also has one bookmark.
type acked struct{ last, tried map[int]int64 }

const (
	bookmark     = -1 // key of the bookmark in both maps
	bookmarkName = "churn/round"
)

func newAcked() acked { return acked{make(map[int]int64), make(map[int]int64)} }

// afterRounds returns the revision of a new store after some rounds of churn. Each round writes four works, each
// sixth one also the bookmark.
func afterRounds(n int) uint64 { return uint64(4*n + (n+5)/6) }

// isWhole reports whether a revision is one after a whole commit of churn.
func isWhole(revision uint64) bool {
	n := 0
	for afterRounds(n) < revision {
		n++
	}
	return afterRounds(n) == revision || n%6 == 1 && afterRounds(n) == revision+1
}

// churn commits batches until one fails or all are done.
func (a acked) churn(s *Store, from, rounds int) error {
	const works, batch = 20, 4
	for round := from; round < from+rounds; round++ {
		var ops []store.Op
		for i := range batch {
			n := (round*batch + i) % works
			version := int64(round + 1)
			a.tried[n] = version
			ops = append(ops, testOp(n, version))
		}
		out, err := s.Commit(context.Background(), ops)
		if err != nil {
			return err
		}
		for i, o := range out {
			if o.Result != store.Accepted {
				return fmt.Errorf("result %d", o.Result)
			}
			n := (round*batch + i) % works
			a.last[n] = a.tried[n]
		}
		if round%6 > 0 {
			continue
		}
		a.tried[bookmark] = int64(round + 1)
		if err := store.WriteBookmarks(context.Background(), s, map[string][]byte{bookmarkName: []byte(fmt.Sprint(round + 1))}); err != nil {
			return err
		}
		a.last[bookmark] = a.tried[bookmark]
	}
	return nil
}

// check checks that a store has each acknowledged work unchanged, at its acknowledged version or at a version
// that was tried later.
func (a acked) check(t *testing.T, s *Store) {
	t.Helper()
	for n, version := range a.last {
		if n == bookmark {
			a.checkBookmark(t, s)
			continue
		}
		r, err := s.Get(context.Background(), testKey(n))
		switch {
		case err != nil:
			t.Fatalf("work %d: version %d was acknowledged: %v", n, version, err)
		case r.Version < version || r.Version > a.tried[n]:
			t.Fatalf("work %d: version %d was acknowledged, %d tried, there is %d", n, version, a.tried[n], r.Version)
		case string(r.Spec) != string(content(n, r.Version)):
			t.Fatalf("work %d: version %d has the content %.30q", n, r.Version, r.Spec)
		}
	}
	checkIndexes(t, s)
}

func (a acked) checkBookmark(t *testing.T, s *Store) {
	t.Helper()
	var round int64
	value := s.Bookmarks("churn/")[bookmarkName]
	if _, err := fmt.Sscan(string(value), &round); err != nil || round < a.last[bookmark] || round > a.tried[bookmark] {
		t.Fatalf("bookmark: round %d was acknowledged, %d tried, there is %q", a.last[bookmark], a.tried[bookmark], value)
	}
}

// checkIndexes compares the results of indexes with a full scan.
func checkIndexes(t *testing.T, s *Store) {
	t.Helper()
	head := s.Head().Revision
	digest := s.ClusterHead(codec.ManifestBundles, "c1").Digest
	var want store.Digest
	err := s.Scan(context.Background(), store.Scope{DataType: codec.ManifestBundles}, func(m store.Meta) error {
		want.Count++
		want.Sum = want.Sum.Add(codec.RecordHash(m.ResourceID, m.Tag))
		if m.SpecRevision > head {
			return fmt.Errorf("%v has revision %d above the head %d", m.Key, m.SpecRevision, head)
		}
		return nil
	})
	if err != nil || digest != want {
		t.Fatalf("digest %v, records have %v; %v", digest, want, err)
	}
	var since store.Digest
	before := uint64(0)
	err = s.Since(context.Background(), store.Scope{DataType: codec.ManifestBundles, Cluster: "c1"}, store.SpecPart, 0, func(m store.Meta) error {
		if m.SpecRevision <= before {
			return fmt.Errorf("revision %d after %d", m.SpecRevision, before)
		}
		before = m.SpecRevision
		since.Count++
		since.Sum = since.Sum.Add(codec.RecordHash(m.ResourceID, m.Tag))
		return nil
	})
	if err != nil || since != want {
		t.Fatalf("changed records have the digest %v, all have %v; %v", since, want, err)
	}
}

// readOnly checks that a failed store rejects writes with the cause.
func readOnly(t *testing.T, s *Store, cause error) {
	t.Helper()
	if !errors.Is(s.Err(), cause) {
		t.Errorf("cause %v, want %v", s.Err(), cause)
	}
	for what, err := range map[string]error{
		"commit":          func() error { _, err := s.Commit(t.Context(), []store.Op{testOp(1, 1<<40)}); return err }(),
		"mark subscribed": storetest.Bind(t.Context(), s, codec.ManifestBundles, "c9", ""),
	} {
		if !errors.Is(err, store.ErrReadOnly) || !errors.Is(err, cause) {
			t.Errorf("%s on a failed store: %v", what, err)
		}
	}
}

// ending checks that a failed store asks its owner to end the process, once.
func ending(t *testing.T, s *Store, cause error) {
	t.Helper()
	select {
	case err := <-s.Fatal():
		if !errors.Is(err, cause) || !strings.HasSuffix(s.Err().Error(), err.Error()) {
			t.Errorf("fatal: %v; the store failed with %v", err, s.Err())
		}
	default:
		t.Errorf("%v is not fatal", cause)
	}
	select {
	case err := <-s.Fatal():
		t.Errorf("the failure is reported twice, or the channel is closed: %v", err)
	default:
	}
}

// failing is a file system with a fault that tests switch on.
func failing(fs vfs.FS, fault func(errorfs.Op) error) (vfs.FS, *atomic.Bool) {
	on := new(atomic.Bool)
	return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if on.Load() {
			return fault(op)
		}
		return nil
	})), on
}

func writes(op errorfs.Op) bool { return op.Kind.ReadOrWrite() == errorfs.OpIsWrite }

func ofFile(op errorfs.Op, pattern string) bool {
	ok, err := filepath.Match(pattern, filepath.Base(op.Path))
	return ok && err == nil
}

// TestFault_LastWrite: after a failed write or sync the store acknowledges nothing more, and asks its owner to
// end the process. Until then readers continue. After a restart, all acknowledged data exists.
func TestFault_LastWrite(t *testing.T) {
	t.Parallel()
	faults := map[string]struct {
		err   error
		fault func(op errorfs.Op) bool
	}{
		"log cannot be written":        {syscall.EIO, func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileWrite && ofFile(op, "*.log") }},
		"log cannot be synced":         {syscall.EIO, func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileSyncData && ofFile(op, "*.log") }},
		"no log":                       {syscall.EIO, func(op errorfs.Op) bool { return created(op) && ofFile(op, "*.log") }},
		"read-only":                    {syscall.EROFS, writes},
		"no room for what was written": {syscall.ENOSPC, func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileSyncData && ofFile(op, "*.log") }},
		"table cannot be synced": {syscall.EIO, func(op errorfs.Op) bool {
			return op.Kind == errorfs.OpFileSync && ofFile(op, "*.sst") || op.Kind == errorfs.OpFileSyncData && ofFile(op, "*.sst")
		}},
		"manifest cannot be written": {syscall.EIO, func(op errorfs.Op) bool { return writes(op) && ofFile(op, "MANIFEST-*") }},
		"directory cannot be synced": {syscall.EIO, func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileSync && filepath.Base(op.Path) == dir }},
	}
	for name, f := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mem := vfs.NewCrashableMem()
			fs, on := failing(mem, func(op errorfs.Op) error {
				if f.fault(op) {
					return f.err
				}
				return nil
			})
			s := mustOpen(t, tiny(fs))
			a := newAcked()
			if err := a.churn(s, 0, 20); err != nil {
				t.Fatal(err)
			}
			on.Store(true)
			if err := a.churn(s, 20, 100_000); !errors.Is(err, store.ErrReadOnly) {
				t.Fatalf("commit on a failing disk: %v", err)
			}
			head := s.Head()
			readOnly(t, s, f.err)
			ending(t, s, f.err)
			a.check(t, s) // reads continue and return acknowledged data
			if s.Head() != head {
				t.Errorf("head %v moved to %v", head, s.Head())
			}
			if err := s.Close(); !errors.Is(err, f.err) {
				t.Errorf("close of a failed store: %v", err)
			}
			// Restart after repair.
			s = mustOpen(t, tiny(mem.CrashClone(vfs.CrashCloneCfg{})))
			a.check(t, s)
			mustClose(t, s)
		})
	}
}

// TestFault_AtEveryWrite makes each write of the disk fail in turn. The process survives. After a restart, all
// acknowledged data exists.
func TestFault_AtEveryWrite(t *testing.T) {
	t.Parallel()
	count := func(last int64) (seen int64, stopped bool) {
		mem := vfs.NewCrashableMem()
		var n atomic.Int64
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if writes(op) && op.Kind != errorfs.OpRemove && n.Add(1) > last {
				return syscall.EIO
			}
			return nil
		}))
		a := newAcked()
		s, err := Open(tiny(fs))
		if err == nil {
			err = errors.Join(a.churn(s, 0, 60), s.Close())
		}
		if err != nil && !errors.Is(err, syscall.EIO) {
			t.Fatalf("after %d writes: %v", last, err)
		}
		after := mustOpen(t, tiny(mem.CrashClone(vfs.CrashCloneCfg{})))
		a.check(t, after)
		mustClose(t, after)
		return n.Load(), err != nil
	}
	total, stopped := count(1 << 40)
	if stopped || total < 100 {
		t.Fatalf("a run without a fault has %d writes, stopped: %v", total, stopped)
	}
	step := int64(5)
	if testing.Short() {
		step = 11
	}
	hit, tried := 0, 0
	for last := int64(0); last < total; last += step {
		tried++
		if _, stopped := count(last); stopped {
			hit++
		}
	}
	// The time of flushes, and so the number of writes, varies slightly.
	if hit < tried/2 {
		t.Errorf("of %d faults %d were noticed", tried, hit)
	}
}

// TestFault_WhileOpening: the files of an unfinished opening are not damage.
func TestFault_WhileOpening(t *testing.T) {
	t.Parallel()
	for last, done := int64(0), false; !done; last++ {
		mem := vfs.NewCrashableMem()
		a := newAcked()
		s := mustOpen(t, tiny(mem))
		if err := a.churn(s, 0, 20); err != nil {
			t.Fatal(err)
		}
		mustClose(t, s)
		var n atomic.Int64
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if writes(op) && n.Add(1) > last {
				return syscall.EIO
			}
			return nil
		}))
		s, err := Open(tiny(fs))
		n.Store(-1 << 40) // the disk works again
		crashed := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: int(last % 2 * 100), RNG: rand.New(rand.NewPCG(1, 1))})
		if done = err == nil; done {
			mustClose(t, s)
		} else if !errors.Is(err, syscall.EIO) {
			t.Errorf("after %d writes: %v", last, err)
		}
		after := mustOpen(t, tiny(crashed))
		a.check(t, after)
		mustClose(t, after)
	}
}

// TestFault_UnreadableTable checks a store on a disk that cannot read a table.
func TestFault_UnreadableTable(t *testing.T) {
	t.Parallel()
	mem := vfs.NewCrashableMem()
	a := newAcked()
	s := mustOpen(t, tiny(mem))
	if err := a.churn(s, 0, 100); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	fs, on := failing(mem, func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileReadAt && ofFile(op, "*.sst") {
			return syscall.EIO
		}
		return nil
	})
	o := tiny(fs)
	o.CacheBytes = 1 // no block is cached
	s = mustOpen(t, o)
	on.Store(true)
	var err error
	for n := range 20 {
		if _, e := s.Get(t.Context(), testKey(n)); e != nil {
			err = e
		}
	}
	if !errors.Is(err, syscall.EIO) {
		t.Fatalf("get from an unreadable disk: %v", err)
	}
	readOnly(t, s, syscall.EIO)
	select {
	case err := <-s.Fatal():
		t.Errorf("a store that cannot be read goes on with what it can read: %v", err)
	default:
	}
	if err := s.Close(); !errors.Is(err, syscall.EIO) {
		t.Errorf("close: %v", err)
	}
}

// TestPowerLoss drops unsynced data at any moment, completely or in part.
func TestPowerLoss(t *testing.T) {
	t.Parallel()
	rounds := 10
	if testing.Short() {
		rounds = 5
	}
	for seed := range rounds {
		rng := rand.New(rand.NewPCG(uint64(seed), 1))
		fs := vfs.NewCrashableMem()
		a := newAcked()
		from := 0
		for range 4 { // each round ends with a power loss
			s := mustOpen(t, tiny(fs))
			a.check(t, s)
			n := rng.IntN(40)
			if err := a.churn(s, from, n); err != nil {
				t.Fatal(err)
			}
			from += n
			// One more commit is in progress during the power loss.
			under := make(chan error, 1)
			before := newAcked()
			for k, v := range a.last {
				before.last[k] = v
			}
			go func() { under <- a.churn(s, from, 1) }()
			crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
			if err := <-under; err != nil {
				t.Fatal(err)
			}
			a.last = before.last // it is unknown whether the commit was acknowledged before
			from++
			mustClose(t, s)
			fs = crashed
		}
		s := mustOpen(t, tiny(fs))
		a.check(t, s)
		mustClose(t, s)
	}
}

// TestDurableBeforeVisible: no reader sees a commit before its sync is done.
func TestDurableBeforeVisible(t *testing.T) {
	t.Parallel()
	syncing, goOn := make(chan struct{}), make(chan struct{})
	fs, on := failing(vfs.NewMem(), func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileSyncData && ofFile(op, "*.log") {
			syncing <- struct{}{}
			<-goOn
		}
		return nil
	})
	s := mustOpen(t, Options{Dir: dir, FS: fs})
	if _, err := s.Commit(t.Context(), []store.Op{testOp(1, 1)}); err != nil {
		t.Fatal(err)
	}
	on.Store(true)
	committed := make(chan error, 1)
	go func() {
		_, err := s.Commit(context.Background(), []store.Op{testOp(1, 2), testOp(2, 1)})
		committed <- err
	}()
	<-syncing
	r, err := s.Get(t.Context(), testKey(1))
	if err != nil || r.Version != 1 || string(r.Spec) != string(content(1, 1)) {
		t.Errorf("get during the sync: version %d, %v", r.Version, err)
	}
	if _, err := s.Get(t.Context(), testKey(2)); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("get of a new record during the sync: %v", err)
	}
	n := 0
	if err := s.Scan(t.Context(), store.Scope{DataType: codec.ManifestBundles}, func(store.Meta) error { n++; return nil }); err != nil || n != 1 {
		t.Errorf("scan during the sync: %d records, %v", n, err)
	}
	if h := s.Head(); h.Revision != 1 {
		t.Errorf("head during the sync: %d", h.Revision)
	}
	if c, err := s.Changes(t.Context(), 0, 10); err != nil || len(c) != 1 || c[0].Revision != 1 {
		t.Errorf("changes during the sync: %+v, %v", c, err)
	}
	on.Store(false)
	close(goOn)
	if err := <-committed; err != nil {
		t.Fatal(err)
	}
	if r, err = s.Get(t.Context(), testKey(1)); err != nil || r.Version != 2 {
		t.Errorf("get after the sync: version %d, %v", r.Version, err)
	}
	mustClose(t, s)
}
