package journal

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hawser-io/hawser/pkg/codec"
)

// benchWorks is the number of works in the benchmarks, of about 10 KiB each.
const benchWorks = 10_000

func benchEvents(b *testing.B) []codec.Event {
	b.Helper()
	data := map[string]any{"manifests": []any{map[string]any{"data": map[string]any{"key": strings.Repeat("x", 10<<10)}}}}
	events := make([]codec.Event, benchWorks)
	for i := range events {
		events[i] = spec(b, fmt.Sprintf("0f4d7a7e-%012d", i), 1)
		if err := events[i].SetData(codec.ContentTypeJSON, data); err != nil {
			b.Fatal(err)
		}
	}
	return events
}

func ignore(codec.Event) error { return nil }

func ignoreID(string) {}

// BenchmarkJournal_Put stores 10,000 works for the first time, without and with the Checkpoint that syncs them.
func BenchmarkJournal_Put(b *testing.B) {
	events := benchEvents(b)
	for _, stable := range []bool{false, true} {
		b.Run(fmt.Sprintf("stable=%t", stable), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				j, err := Open(Config{Dir: b.TempDir()})
				must(b, err)
				_, err = j.Load(testBinding, ignore, ignoreID)
				must(b, err)
				b.StartTimer()
				for _, e := range events {
					must(b, j.Put(e))
				}
				if stable {
					must(b, j.Checkpoint(cursor(1)))
				}
				b.StopTimer()
				must(b, j.Close())
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*benchWorks), "µs/work")
		})
	}
}

// BenchmarkJournal_Load starts with 10,000 works. It measures their read, and the time until a Checkpoint has
// synced all, as at the start of an agent.
func BenchmarkJournal_Load(b *testing.B) {
	dir := b.TempDir()
	j, err := Open(Config{Dir: dir})
	must(b, err)
	_, err = j.Load(testBinding, ignore, ignoreID)
	must(b, err)
	for _, e := range benchEvents(b) {
		must(b, j.Put(e))
	}
	must(b, j.Checkpoint(cursor(1)))
	must(b, j.Close())
	for _, checkpoint := range []bool{false, true} {
		b.Run(fmt.Sprintf("checkpoint=%t", checkpoint), func(b *testing.B) {
			for n := 2; b.Loop(); n++ {
				j, err := Open(Config{Dir: dir})
				must(b, err)
				var works []codec.Event
				_, err = j.Load(testBinding, func(e codec.Event) error { works = append(works, e); return nil }, ignoreID)
				must(b, err)
				if len(works) != benchWorks {
					b.Fatal(len(works))
				}
				if checkpoint {
					must(b, j.Compact(Content{Works: func(yield func(codec.Event, error) bool) {
						for _, e := range works {
							if !yield(e, nil) {
								return
							}
						}
					}}))
					must(b, j.Checkpoint(cursor(n)))
				}
				must(b, j.Close())
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*benchWorks), "µs/work")
		})
	}
}

// BenchmarkJournal_Change stores one changed work among 10,000 on stable storage.
func BenchmarkJournal_Change(b *testing.B) {
	j, err := Open(Config{Dir: b.TempDir()})
	must(b, err)
	_, err = j.Load(testBinding, ignore, ignoreID)
	must(b, err)
	events := benchEvents(b)
	for _, e := range events {
		must(b, j.Put(e))
	}
	must(b, j.Checkpoint(cursor(1)))
	for n := 2; b.Loop(); n++ {
		must(b, j.Put(events[n%benchWorks]))
		must(b, j.Checkpoint(cursor(n)))
	}
	must(b, j.Close())
}
