// Package quota limits the works and bytes of each source in a broker, and of each cluster for all sources
// together. It only counts and compares. The caller that commits asks [Quota.Exceeded] with the usage after the
// preceding ops of the commit, so that two publishes never use the same capacity.
//
//	source    works, bytes of their specs, clusters on which it has works
//	cluster   works of all sources, bytes of their specs, bytes of their statuses
//
// A deleted work counts as a work until its cluster has confirmed, and then as a record only. A deletion never
// needs quota, except the deletion of a work that the broker does not know.
package quota

import "github.com/hawser-io/hawser/internal/identity"

// Amount is the usage of a source or a cluster.
type Amount struct {
	Works    int64 // live records and tombstones
	Records  int64 // the works, and confirmed tombstones
	Bytes    int64 // of the specs
	Statuses int64 // bytes of the statuses
	Clusters int64 // of a source: clusters on which it has works
}

// Plus returns u + v.
func (u Amount) Plus(v Amount) Amount {
	return Amount{
		Works: u.Works + v.Works, Records: u.Records + v.Records, Bytes: u.Bytes + v.Bytes,
		Statuses: u.Statuses + v.Statuses, Clusters: u.Clusters + v.Clusters,
	}
}

// Minus returns u - v.
func (u Amount) Minus(v Amount) Amount {
	return Amount{
		Works: u.Works - v.Works, Records: u.Records - v.Records, Bytes: u.Bytes - v.Bytes,
		Statuses: u.Statuses - v.Statuses, Clusters: u.Clusters - v.Clusters,
	}
}

// Scope is the kind of owner of a limit.
type Scope string

// The scopes.
const (
	Source  Scope = "source"
	Cluster Scope = "cluster"
)

// Resource is a limited resource.
type Resource string

// The resources. A cluster may have as many bytes of statuses as of specs.
const (
	Works    Resource = "works"
	Records  Resource = "records"
	Bytes    Resource = "bytes"
	Statuses Resource = "statuses"
	Clusters Resource = "clusters"
)

// RecordsPerWork is the maximum number of records for each work of the limit. It is high because confirmed
// tombstones are small, and are removed when their source has acknowledged them.
const RecordsPerWork = 10

// Excess is a limit that would be exceeded. The zero value is none.
type Excess struct {
	Scope    Scope
	Resource Resource
	Limit    int64
}

// UsageReader reads the usage, with the changes of the running commit.
type UsageReader interface {
	Source(name string) Amount
	Cluster(name string) Amount
	// Works returns the number of works of a source on a cluster.
	Works(source, cluster string) int64
}

// Quota is the limits of a source and of each cluster.
type Quota struct{ Source, Cluster identity.Limits }

// Exceeded returns the first limit that would be exceeded if the usage of a source on a cluster grew by more.
// Only increases count: a source above a lowered limit can still delete works, and change them without making
// them larger.
func (q *Quota) Exceeded(u UsageReader, source, cluster string, more Amount) Excess {
	if more.Works <= 0 && more.Bytes <= 0 && more.Records <= 0 {
		return Excess{} // most publishes are of an existing work
	}
	if more.Works > 0 && u.Works(source, cluster) == 0 {
		more.Clusters = 1
	}
	if what, limit := exceeded(u.Source(source), more, q.Source); what != "" {
		return Excess{Scope: Source, Resource: what, Limit: limit}
	}
	more.Clusters = 0
	if what, limit := exceeded(u.Cluster(cluster), more, q.Cluster); what != "" {
		return Excess{Scope: Cluster, Resource: what, Limit: limit}
	}
	return Excess{}
}

func exceeded(u, more Amount, l identity.Limits) (Resource, int64) {
	for _, d := range []struct {
		what            Resource
		has, add, limit int64
	}{
		{Works, u.Works, more.Works, l.Works},
		{Clusters, u.Clusters, more.Clusters, l.Clusters},
		{Bytes, u.Bytes, more.Bytes, l.Bytes},
		{Records, u.Records, more.Records, RecordsPerWork * l.Works},
	} {
		if d.add > 0 && d.limit > 0 && d.has+d.add > d.limit {
			return d.what, d.limit
		}
	}
	return "", 0
}

// Reported is Exceeded for a status of a cluster.
func (q *Quota) Reported(u UsageReader, cluster string, more Amount) Excess {
	if limit := q.Cluster.Bytes; more.Statuses > 0 && limit > 0 && u.Cluster(cluster).Statuses+more.Statuses > limit {
		return Excess{Scope: Cluster, Resource: Statuses, Limit: limit}
	}
	return Excess{}
}
