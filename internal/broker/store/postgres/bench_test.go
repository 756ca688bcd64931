package postgres_test

import (
	"crypto/rand"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/pebble"
	"github.com/hawser-io/hawser/internal/broker/store/postgres"
)

// BenchmarkInFlight measures durable publishes of 4 KiB beside those of the embedded store. Each client waits for its
// acknowledgement, and a committer commits what has gathered, as the broker does.
func BenchmarkInFlight(b *testing.B) {
	server := start(b, map[string]string{"min_wal_size": "'1GB'", "max_wal_size": "'4GB'", "shared_buffers": "'512MB'"})
	if err := server.WarmUp(b.Context()); err != nil {
		b.Fatal(err)
	}
	engines := map[string]func(b *testing.B) store.Store{
		"pebble": func(b *testing.B) store.Store {
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
		},
		"postgres": func(b *testing.B) store.Store {
			return open(b, postgres.Options{URL: server.URL(newDatabase(b, server))})
		},
	}
	for _, clients := range []int{1, 64} {
		for _, engine := range []string{"pebble", "postgres"} {
			b.Run(fmt.Sprintf("%s/%d", engine, clients), func(b *testing.B) {
				publish(b, engines[engine](b), clients)
			})
		}
	}
}

// publish publishes b.N works from some clients.
func publish(b *testing.B, s store.Store, clients int) {
	event := make([]byte, 4096)
	if _, err := rand.Read(event); err != nil {
		b.Fatal(err)
	}
	type publish struct {
		op   store.Op
		done chan error
	}
	queue := make(chan publish, clients)
	var committer, publishers sync.WaitGroup
	committer.Go(func() {
		for first := range queue {
			batch := []publish{first}
			for len(queue) > 0 {
				batch = append(batch, <-queue)
			}
			ops := make([]store.Op, len(batch))
			for i := range batch {
				ops[i] = batch[i].op
			}
			_, err := s.Commit(b.Context(), ops)
			for _, p := range batch {
				p.done <- err
			}
		}
	})
	const works = 10240
	b.ResetTimer()
	began := time.Now()
	for client := range clients {
		publishers.Go(func() {
			done := make(chan error, 1)
			for n := client; n < b.N; n += clients {
				queue <- publish{work(n%works, int64(1+n/works), event), done}
				if err := <-done; err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	publishers.Wait()
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "publishes/s")
	close(queue)
	committer.Wait()
}
