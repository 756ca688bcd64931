package pebble_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/pebble"
	"github.com/hawser-io/hawser/pkg/codec"
)

const eventBytes = 4096

func benchStore(b *testing.B) *pebble.Store {
	b.Helper()
	s, err := pebble.Open(pebble.Options{Dir: filepath.Join(b.TempDir(), "store")})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	return s
}

// randomEvent returns an event that cannot be compressed.
func randomEvent(tb testing.TB) []byte {
	tb.Helper()
	e := make([]byte, eventBytes)
	if _, err := rand.Read(e); err != nil {
		tb.Fatal(err)
	}
	return e
}

// work returns the nth work. There are 100 works per cluster.
func work(n int, version int64, event []byte) store.Op {
	o := store.Op{
		Kind: store.PutSpec, Owner: "hub", Name: fmt.Sprintf("work-%d", n), Action: codec.UpdateRequest, Version: version,
		Key: store.Key{
			DataType: codec.ManifestBundles, Cluster: fmt.Sprintf("cluster-%d", n/100),
			ResourceID: fmt.Sprintf("0dd0c9a2-8f3c-4d2f-9a5b-%012d", n),
		},
		Event: event, At: time.Unix(1795000000, 0).UTC(),
	}
	o.Tag = codec.TagOf(false, version, o.Name, nil)
	return o
}

// fill commits works in large batches.
func fill(tb testing.TB, s store.Store, works int, event []byte) {
	tb.Helper()
	const batch = 500
	for from := 0; from < works; from += batch {
		ops := make([]store.Op, 0, batch)
		for n := from; n < min(from+batch, works); n++ {
			ops = append(ops, work(n, 1, event))
		}
		if _, err := s.Commit(context.Background(), ops); err != nil {
			tb.Fatal(err)
		}
	}
}

// BenchmarkFdatasync measures the lower bound of a commit: append 4 KiB and sync.
func BenchmarkFdatasync(b *testing.B) {
	f, err := os.Create(filepath.Join(b.TempDir(), "log"))
	if err != nil {
		b.Fatal(err)
	}
	event := randomEvent(b)
	for b.Loop() {
		if _, err := f.Write(event); err != nil {
			b.Fatal(err)
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			b.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkCommit updates works of 4 KiB, with several numbers of works per commit.
func BenchmarkCommit(b *testing.B) {
	for _, size := range []int{1, 64} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s, event := benchStore(b), randomEvent(b)
			n, version := 0, int64(1)
			for b.Loop() {
				ops := make([]store.Op, 0, size)
				for range size {
					if n++; n == 10240 {
						n, version = 0, version+1
					}
					ops = append(ops, work(n, version, event))
				}
				if _, err := s.Commit(b.Context(), ops); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "works/s")
		})
	}
}

// BenchmarkRead reads from 100,000 works of 4 KiB.
func BenchmarkRead(b *testing.B) {
	const works = 100_000
	s := benchStore(b)
	fill(b, s, works, randomEvent(b))
	b.Run("Get", func(b *testing.B) {
		n := 0
		for b.Loop() {
			n = (n + 7919) % works
			if _, err := s.Get(b.Context(), work(n, 1, nil).Key); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Scan100", func(b *testing.B) {
		n := 0
		for b.Loop() {
			n = (n + 79) % (works / 100)
			seen := 0
			err := s.Scan(b.Context(), store.Scope{DataType: codec.ManifestBundles, Cluster: fmt.Sprintf("cluster-%d", n)}, func(store.Meta) error {
				seen++
				return nil
			})
			if err != nil || seen != 100 {
				b.Fatalf("%d records, %v", seen, err)
			}
		}
	})
	b.Run("Since3", func(b *testing.B) { // the last three changes of a cluster
		n := 0
		for b.Loop() {
			n = (n + 79) % (works / 100)
			seen := 0
			scope := store.Scope{DataType: codec.ManifestBundles, Cluster: fmt.Sprintf("cluster-%d", n)}
			err := s.Since(b.Context(), scope, store.SpecPart, uint64(n*100+97), func(store.Meta) error { seen++; return nil })
			if err != nil || seen != 3 {
				b.Fatalf("%d records, %v", seen, err)
			}
		}
	})
	b.Run("Since100", func(b *testing.B) { // all of a cluster
		n := 0
		for b.Loop() {
			n = (n + 79) % (works / 100)
			seen := 0
			scope := store.Scope{DataType: codec.ManifestBundles, Cluster: fmt.Sprintf("cluster-%d", n)}
			err := s.Since(b.Context(), scope, store.SpecPart, 0, func(store.Meta) error { seen++; return nil })
			if err != nil || seen != 100 {
				b.Fatalf("%d records, %v", seen, err)
			}
		}
	})
	b.Run("Replay1000", func(b *testing.B) {
		n := uint64(0)
		for b.Loop() {
			n = (n + 7919) % (works - 1000)
			if c, err := s.Changes(b.Context(), n, 1000); err != nil || len(c) != 1000 {
				b.Fatalf("%d changes, %v", len(c), err)
			}
		}
	})
}

// BenchmarkOpen opens a store of 100,000 works of 4 KiB.
func BenchmarkOpen(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "store")
	open := func() *pebble.Store {
		s, err := pebble.Open(pebble.Options{Dir: dir})
		if err != nil {
			b.Fatal(err)
		}
		return s
	}
	shut := func(s *pebble.Store) {
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
	s := open()
	fill(b, s, 100_000, randomEvent(b))
	shut(s)
	for b.Loop() {
		shut(open())
	}
}

// BenchmarkCheck checks a store of 10,000 works of 4 KiB.
func BenchmarkCheck(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "store")
	s, err := pebble.Open(pebble.Options{Dir: dir})
	if err != nil {
		b.Fatal(err)
	}
	fill(b, s, 10_000, randomEvent(b))
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if r, err := pebble.Check(b.Context(), dir); err != nil || r.Err() != nil {
			b.Fatal(err, r.Err())
		}
	}
}

func BenchmarkBackup(b *testing.B) {
	s := benchStore(b)
	fill(b, s, 10_000, randomEvent(b))
	n := 0
	for b.Loop() {
		n++
		if err := s.Backup(b.Context(), func(string, []byte) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}
