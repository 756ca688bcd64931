// Package quota says what a source may have in a broker, and what a cluster may have of all
// sources together. It counts and compares, and nothing else: whoever commits asks [Quota.Exceeded]
// about what a commit would add, with the use that the commit has led to so far, so that no two
// publishes can take the same room.
//
//	source    works, bytes of their specs, clusters on which it has works
//	cluster   works of all sources, bytes of their specs, bytes of their statuses
//
// What is deleted counts as a work until its cluster has confirmed; what a broker keeps of it
// after that counts as a record only. A deletion never needs room, unless it is of a work that
// the broker does not know.
package quota

import "github.com/hawser-io/hawser/internal/identity"

// Use is what somebody has.
type Use struct {
	Works    int64 // that live, or whose deletion is not confirmed
	Records  int64 // these, and what is kept of works that are gone
	Bytes    int64 // of their specs
	Statuses int64 // bytes of their statuses
	Clusters int64 // of a source: clusters on which it has works
}

// Plus returns the sum of both.
func (u Use) Plus(v Use) Use {
	return Use{
		Works: u.Works + v.Works, Records: u.Records + v.Records, Bytes: u.Bytes + v.Bytes,
		Statuses: u.Statuses + v.Statuses, Clusters: u.Clusters + v.Clusters,
	}
}

// Minus returns what u has more than v.
func (u Use) Minus(v Use) Use {
	return Use{
		Works: u.Works - v.Works, Records: u.Records - v.Records, Bytes: u.Bytes - v.Bytes,
		Statuses: u.Statuses - v.Statuses, Clusters: u.Clusters - v.Clusters,
	}
}

// Scope says whose a limit is.
type Scope string

// Who has limits.
const (
	Source  Scope = "source"
	Cluster Scope = "cluster"
)

// Resource is limited.
type Resource string

// What is limited. A cluster may have as many bytes of statuses as of specs.
const (
	Works    Resource = "works"
	Records  Resource = "records"
	Bytes    Resource = "bytes"
	Statuses Resource = "statuses"
	Clusters Resource = "clusters"
)

// RecordsPerWork is how many records there may be for each work that there may be: what is
// kept of works that are gone is small, and goes when their source has seen it.
const RecordsPerWork = 10

// Excess is a limit that something would exceed. The zero value is none.
type Excess struct {
	Of    Scope
	What  Resource
	Limit int64
}

// UsageReader is what is used, the changes of a commit included that were made so far.
type UsageReader interface {
	Source(name string) Use
	Cluster(name string) Use
	// Works is how many works a source has on a cluster.
	Works(source, cluster string) int64
}

// Quota is what a source may have, and what each cluster may have.
type Quota struct{ Source, Cluster identity.Limits }

// Exceeded returns the first limit that is exceeded when a source has so much more on a
// cluster. Only what becomes more counts: whoever is over a limit that was lowered can still
// change works without making them larger, and delete them.
func (q *Quota) Exceeded(u UsageReader, source, cluster string, more Use) Excess {
	if more.Works <= 0 && more.Bytes <= 0 && more.Records <= 0 {
		return Excess{} // most publishes are of a work that is there
	}
	if more.Works > 0 && u.Works(source, cluster) == 0 {
		more.Clusters = 1
	}
	if what, limit := exceeded(u.Source(source), more, q.Source); what != "" {
		return Excess{Of: Source, What: what, Limit: limit}
	}
	more.Clusters = 0
	if what, limit := exceeded(u.Cluster(cluster), more, q.Cluster); what != "" {
		return Excess{Of: Cluster, What: what, Limit: limit}
	}
	return Excess{}
}

func exceeded(u, more Use, l identity.Limits) (Resource, int64) {
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
func (q *Quota) Reported(u UsageReader, cluster string, more Use) Excess {
	if limit := q.Cluster.Bytes; more.Statuses > 0 && limit > 0 && u.Cluster(cluster).Statuses+more.Statuses > limit {
		return Excess{Of: Cluster, What: Statuses, Limit: limit}
	}
	return Excess{}
}
