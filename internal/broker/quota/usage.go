package quota

import (
	"maps"
	"slices"
)

// Usage is the usage of all sources and clusters. An engine keeps it in memory and rebuilds it when it is
// opened. It is not safe for concurrent use, except that its reading methods may run together.
type Usage struct {
	sources, clusters map[string]Amount
	works             map[pair]int64
}

type pair struct{ source, cluster string }

var _ UsageReader = (*Usage)(nil)

// NewUsage returns the usage of an empty store.
func NewUsage() *Usage {
	return &Usage{sources: map[string]Amount{}, clusters: map[string]Amount{}, works: map[pair]int64{}}
}

// Change is a difference in the usage of a source on a cluster.
type Change struct {
	Source, Cluster string
	By              Amount
}

// Source implements [UsageReader].
func (b *Usage) Source(name string) Amount { return b.sources[name] }

// Cluster implements [UsageReader].
func (b *Usage) Cluster(name string) Amount { return b.clusters[name] }

// Works implements [UsageReader].
func (b *Usage) Works(source, cluster string) int64 { return b.works[pair{source, cluster}] }

// Row is the usage of one source or one cluster.
type Row struct {
	Name string
	Amount
}

// Rows returns the usage of sources or clusters, sorted by name: at most limit rows with names greater than
// after.
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
		rows = append(rows, Row{Name: name, Amount: all[name]})
	}
	return rows
}

// Add applies a change.
func (b *Usage) Add(c Change) {
	d := b.Pending()
	d.Add(c)
	d.Keep()
}

// PendingUsage is a usage with the changes of a commit that is not written yet.
type PendingUsage struct {
	base              *Usage
	sources, clusters map[string]Amount
	works             map[pair]int64
}

var _ UsageReader = (*PendingUsage)(nil)

// Pending returns a usage without changes of its own.
func (b *Usage) Pending() *PendingUsage {
	return &PendingUsage{base: b, sources: map[string]Amount{}, clusters: map[string]Amount{}, works: map[pair]int64{}}
}

// Source implements [UsageReader].
func (d *PendingUsage) Source(name string) Amount { return drafted(d.sources, d.base.sources, name) }

// Cluster implements [UsageReader].
func (d *PendingUsage) Cluster(name string) Amount { return drafted(d.clusters, d.base.clusters, name) }

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

// Add applies a change.
func (d *PendingUsage) Add(c Change) {
	if c.By == (Amount{}) {
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

// Keep applies the changes to the base, after the commit is written.
func (d *PendingUsage) Keep() {
	keep(d.base.sources, d.sources)
	keep(d.base.clusters, d.clusters)
	keep(d.base.works, d.works)
}

// keep copies draft into book, and removes zero values.
func keep[K, V comparable](book, draft map[K]V) {
	var nothing V
	maps.Copy(book, draft)
	for k, v := range draft {
		if v == nothing {
			delete(book, k)
		}
	}
}
