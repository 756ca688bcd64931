// Package memindex has the indexes that each engine keeps in memory beside its records, so that all engines
// return the same results. These are sums and revisions ([Summary]), the last changes ([Ring]), incarnations and
// bookmarks. Only concurrent reads are safe.
package memindex

import (
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Incarnation is one opening of a store.
type Incarnation struct {
	ID    string
	First uint64 // first revision
}

// Incarnations are the openings that a store remembers, oldest first.
type Incarnations []Incarnation

// Begin returns t with another incarnation, limited to the last [store.MaxIncarnations].
func (t Incarnations) Begin(next Incarnation) Incarnations {
	t = append(slices.Clip(t), next)
	return t[max(0, len(t)-store.MaxIncarnations):]
}

// Valid is ValidCursor of [store.Replica] for a store with this head.
func (t Incarnations) Valid(head store.Head, c store.Cursor) bool {
	i := slices.IndexFunc(t, func(t Incarnation) bool { return t.ID == c.Incarnation })
	return c.StoreID == head.StoreID && c.Revision <= head.Revision && i >= 0 && (i+1 == len(t) || c.Revision < t[i+1].First)
}

// ClusterKey is a cluster and a data type.
type ClusterKey struct {
	DataType codec.DataType
	Cluster  string
}

// Bookmarks holds the bookmarks of an engine in memory. Bindings are stored as bookmarks, and kept apart here:
// commits look them up for each op.
type Bookmarks struct {
	named    map[string]store.Bookmark
	bindings map[ClusterKey]store.Bookmark
}

// NewBookmarks returns no bookmarks.
func NewBookmarks() Bookmarks {
	return Bookmarks{named: make(map[string]store.Bookmark), bindings: make(map[ClusterKey]store.Bookmark)}
}

// Clone returns a copy.
func (b Bookmarks) Clone() Bookmarks {
	return Bookmarks{named: maps.Clone(b.named), bindings: maps.Clone(b.bindings)}
}

// Len returns the number of bookmarks that are no bindings.
func (b Bookmarks) Len() int { return len(b.named) }

// All yields all bookmarks and bindings, in no order.
func (b Bookmarks) All() iter.Seq2[string, store.Bookmark] {
	return func(yield func(string, store.Bookmark) bool) {
		for name, v := range b.named {
			if !yield(name, v) {
				return
			}
		}
		for k, v := range b.bindings {
			if !yield(store.BindingName(k.DataType, k.Cluster), v) {
				return
			}
		}
	}
}

// Get returns a bookmark or a binding, nil if there is none.
func (b Bookmarks) Get(name string) *store.Bookmark {
	v, ok := b.named[name]
	if dt, cluster, is := store.ParseBinding(name); is {
		v, ok = b.bindings[ClusterKey{DataType: dt, Cluster: cluster}]
	}
	if !ok {
		return nil
	}
	return &v
}

// Set stores a bookmark or a binding; nil removes it.
func (b Bookmarks) Set(name string, v *store.Bookmark) {
	dt, cluster, binds := store.ParseBinding(name)
	k := ClusterKey{DataType: dt, Cluster: cluster}
	switch {
	case binds && v == nil:
		delete(b.bindings, k)
	case binds:
		b.bindings[k] = *v
	case v == nil:
		delete(b.named, name)
	default:
		b.named[name] = *v
	}
}

// Named is Bookmark of [store.Replica].
func (b Bookmarks) Named(name string) (store.Bookmark, bool) {
	v, ok := b.named[name]
	return v, ok
}

// WithPrefix is Bookmarks of [store.Replica].
func (b Bookmarks) WithPrefix(prefix string) map[string][]byte {
	out := make(map[string][]byte)
	for name, v := range b.named {
		if strings.HasPrefix(name, prefix) {
			out[name] = append([]byte{}, v.Value...)
		}
	}
	return out
}

// Subscribed is Subscribed of [store.Replica].
func (b Bookmarks) Subscribed(dt codec.DataType, cluster string) (uid string, ok bool) {
	v, ok := b.bindings[ClusterKey{DataType: dt, Cluster: cluster}]
	return string(v.Value), ok
}

// IsSubscribed reports whether there is a binding.
func (b Bookmarks) IsSubscribed(dt codec.DataType, cluster string) bool {
	_, ok := b.bindings[ClusterKey{DataType: dt, Cluster: cluster}]
	return ok
}

// Clusters is Clusters of [store.Replica] for a store with the records of t.
func (b Bookmarks) Clusters(t *Summary, dt codec.DataType) []string {
	set := make(map[string]struct{})
	t.clustersOf(dt, set)
	for k := range b.bindings {
		if k.DataType == dt {
			set[k.Cluster] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(set))
}
