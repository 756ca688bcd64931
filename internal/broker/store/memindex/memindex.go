// Package memindex has the indexes that each engine keeps in memory beside its records, so that all engines
// return the same results. These are sums and revisions ([Summary]), the last changes ([Ring]), incarnations,
// subscriptions and bookmarks. Only concurrent reads are safe.
package memindex

import (
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

// Valid is [store.Store.ValidCursor] for a store with this head.
func (t Incarnations) Valid(head store.Head, c store.Cursor) bool {
	i := slices.IndexFunc(t, func(t Incarnation) bool { return t.ID == c.Incarnation })
	return c.StoreID == head.StoreID && c.Revision <= head.Revision && i >= 0 && (i+1 == len(t) || c.Revision < t[i+1].First)
}

// ClusterKey is a cluster and a data type.
type ClusterKey struct {
	DataType codec.DataType
	Cluster  string
}

// Subscriptions holds the clusters and data types to which an agent ever subscribed, with the uid of the
// cluster, "" if no agent sent it.
type Subscriptions map[ClusterKey]string

// IsNew reports whether a subscription is new or has a new uid.
func (s Subscriptions) IsNew(p ClusterKey, uid string) bool {
	known, ok := s[p]
	return !ok || uid != "" && uid != known
}

// Forget removes a cluster.
func (s Subscriptions) Forget(cluster string) {
	maps.DeleteFunc(s, func(p ClusterKey, _ string) bool { return p.Cluster == cluster })
}

// Clusters is Clusters of [store.Store] for a store with the records of t.
func (s Subscriptions) Clusters(t *Summary, dt codec.DataType) []string {
	set := make(map[string]struct{})
	t.clustersOf(dt, set)
	for p := range s {
		if p.DataType == dt {
			set[p.Cluster] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// Bookmarks holds the few bookmarks of an engine in memory.
type Bookmarks map[string][]byte // values are never modified

// Set is [store.Store.SetBookmarks].
func (b Bookmarks) Set(set map[string][]byte) {
	for name, value := range set {
		if value == nil {
			delete(b, name)
		} else {
			b[name] = append([]byte{}, value...)
		}
	}
}

// WithPrefix is [store.Store.Bookmarks].
func (b Bookmarks) WithPrefix(prefix string) map[string][]byte {
	out := make(map[string][]byte)
	for name, value := range b {
		if strings.HasPrefix(name, prefix) {
			out[name] = append([]byte{}, value...)
		}
	}
	return out
}
