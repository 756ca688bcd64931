// Package memindex is what every engine keeps in memory beside its records, so that they
// answer alike: sums and revisions ([Summary]), the last changes ([Ring]), terms,
// subscriptions and bookmarks. Nothing here is safe for concurrent use, but what reads
// beside others that read.
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
	First uint64 // revision
}

// Incarnations are the openings that a store remembers, in their order.
type Incarnations []Incarnation

// Begin returns t with another term, without those beyond [store.MaxIncarnations].
func (t Incarnations) Begin(next Incarnation) Incarnations {
	t = append(slices.Clip(t), next)
	return t[max(0, len(t)-store.MaxIncarnations):]
}

// Valid as in [store.Store.ValidCursor], of a store with this head.
func (t Incarnations) Valid(head store.Head, c store.Cursor) bool {
	i := slices.IndexFunc(t, func(t Incarnation) bool { return t.ID == c.Incarnation })
	return c.StoreID == head.StoreID && c.Revision <= head.Revision && i >= 0 && (i+1 == len(t) || c.Revision < t[i+1].First)
}

// ClusterKey is a cluster and a data type.
type ClusterKey struct {
	DataType codec.DataType
	Cluster  string
}

// Subscriptions are the places to which an agent ever subscribed, with the uid of its
// cluster, "" where it gave none.
type Subscriptions map[ClusterKey]string

// News reports whether a subscription says more than is known.
func (s Subscriptions) News(p ClusterKey, uid string) bool {
	known, ok := s[p]
	return !ok || uid != "" && uid != known
}

// Forget removes a cluster.
func (s Subscriptions) Forget(cluster string) {
	maps.DeleteFunc(s, func(p ClusterKey, _ string) bool { return p.Cluster == cluster })
}

// Clusters as in [store.Store], of a store with the records of t.
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

// Bookmarks is what an engine keeps in memory of its bookmarks: there are few.
type Bookmarks map[string][]byte // values are never changed in place

// Set as in [store.Store.SetBookmarks].
func (b Bookmarks) Set(set map[string][]byte) {
	for name, value := range set {
		if value == nil {
			delete(b, name)
		} else {
			b[name] = append([]byte{}, value...)
		}
	}
}

// Under as in [store.Store.Bookmarks].
func (b Bookmarks) Under(prefix string) map[string][]byte {
	out := make(map[string][]byte)
	for name, value := range b {
		if strings.HasPrefix(name, prefix) {
			out[name] = append([]byte{}, value...)
		}
	}
	return out
}
