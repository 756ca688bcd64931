package quota

import (
	"maps"
	"slices"
)

// Usage is the use of everybody, kept in memory by an engine and made anew when that is opened.
// It is not safe for concurrent use, but for its reading methods among themselves.
type Usage struct {
	sources, clusters map[string]Use
	works             map[pair]int64
}

type pair struct{ source, cluster string }

var _ UsageReader = (*Usage)(nil)

// NewUsage returns the book of an empty store.
func NewUsage() *Usage {
	return &Usage{sources: map[string]Use{}, clusters: map[string]Use{}, works: map[pair]int64{}}
}

// Change is what a source has more, or less, on a cluster.
type Change struct {
	Source, Cluster string
	By              Use
}

// Source implements [UsageReader].
func (b *Usage) Source(name string) Use { return b.sources[name] }

// Cluster implements [UsageReader].
func (b *Usage) Cluster(name string) Use { return b.clusters[name] }

// Works implements [UsageReader].
func (b *Usage) Works(source, cluster string) int64 { return b.works[pair{source, cluster}] }

// Row is the use of one source or one cluster.
type Row struct {
	Name string
	Use
}

// Rows returns the use of sources, or of clusters, by name: those after one, at most limit.
func (b *Usage) Rows(of Scope, after string, limit int) []Row {
	all := b.sources
	if of == Cluster {
		all = b.clusters
	}
	var names []string
	for name := range all {
		if name > after {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	rows := make([]Row, 0, min(limit, len(names)))
	for _, name := range names[:min(limit, len(names))] {
		rows = append(rows, Row{Name: name, Use: all[name]})
	}
	return rows
}

// Add counts a change.
func (b *Usage) Add(c Change) {
	d := b.Pending()
	d.Add(c)
	d.Keep()
}

// PendingUsage is a book with the changes of a commit that is not written yet.
type PendingUsage struct {
	base              *Usage
	sources, clusters map[string]Use
	works             map[pair]int64
}

var _ UsageReader = (*PendingUsage)(nil)

// Pending begins one.
func (b *Usage) Pending() *PendingUsage {
	return &PendingUsage{base: b, sources: map[string]Use{}, clusters: map[string]Use{}, works: map[pair]int64{}}
}

// Source implements [UsageReader].
func (d *PendingUsage) Source(name string) Use { return drafted(d.sources, d.base.sources, name) }

// Cluster implements [UsageReader].
func (d *PendingUsage) Cluster(name string) Use { return drafted(d.clusters, d.base.clusters, name) }

// Works implements [UsageReader].
func (d *PendingUsage) Works(source, cluster string) int64 {
	return drafted(d.works, d.base.works, pair{source, cluster})
}

func drafted[K comparable, V any](draft, book map[K]V, k K) V {
	if v, ok := draft[k]; ok {
		return v
	}
	return book[k]
}

// Add counts a change.
func (d *PendingUsage) Add(c Change) {
	if c.By == (Use{}) {
		return
	}
	before := d.Works(c.Source, c.Cluster)
	after := before + c.By.Works
	d.works[pair{c.Source, c.Cluster}] = after
	d.clusters[c.Cluster] = d.Cluster(c.Cluster).Plus(c.By)
	switch {
	case before == 0 && after > 0:
		c.By.Clusters = 1
	case before > 0 && after == 0:
		c.By.Clusters = -1
	}
	d.sources[c.Source] = d.Source(c.Source).Plus(c.By)
}

// Keep carries the draft over into its book, once it is written.
func (d *PendingUsage) Keep() {
	keep(d.base.sources, d.sources)
	keep(d.base.clusters, d.clusters)
	keep(d.base.works, d.works)
}

// keep forgets who has nothing.
func keep[K, V comparable](book, draft map[K]V) {
	var nothing V
	maps.Copy(book, draft)
	for k, v := range draft {
		if v == nothing {
			delete(book, k)
		}
	}
}
