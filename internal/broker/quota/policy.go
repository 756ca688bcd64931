package quota

import (
	"maps"
	"slices"

	"github.com/hawser-io/hawser/internal/identity"
)

// Default limits. They are far above what one hub of Open Cluster Management has. They bound the memory of the
// broker for one source.
var (
	defaultSource  = identity.Limits{Works: 1_000_000, Bytes: 64 << 30, Clusters: 1 << 16}
	defaultCluster = identity.Limits{Works: 100_000, Bytes: 16 << 30}
)

// SourcePolicy is the quota and the allowed clusters of one source.
type SourcePolicy struct {
	Quota           Quota
	AllowedClusters identity.AllowedClusters
}

// Table has the policy of every source. It is immutable. The nil table has the same policy for all: every
// cluster, and the default quota.
type Table struct {
	sources map[string]*SourcePolicy
	others  *SourcePolicy
}

var unconfigured = newPolicy(identity.Rule{}, identity.Limits{})

// NewTable returns the policies of a configuration: the identity rules of sources, and the limits of a cluster.
func NewTable(rules identity.Mapping, cluster identity.Limits) *Table {
	t := &Table{sources: map[string]*SourcePolicy{}, others: newPolicy(identity.Rule{}, cluster)}
	for _, r := range rules {
		if r.Role == identity.Source {
			t.sources[r.Name] = newPolicy(r, cluster)
		}
	}
	return t
}

func newPolicy(r identity.Rule, cluster identity.Limits) *SourcePolicy {
	return &SourcePolicy{
		Quota:           Quota{Source: r.Quota.Or(defaultSource), Cluster: cluster.Or(defaultCluster)},
		AllowedClusters: r.AllowedClusters(),
	}
}

// Sources returns the names of the configured sources, sorted.
func (t *Table) Sources() []string {
	if t == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(t.sources))
}

// Of returns the policy of a source. It is immutable.
func (t *Table) Of(source string) *SourcePolicy {
	if t == nil {
		return unconfigured
	}
	if terms := t.sources[source]; terms != nil {
		return terms
	}
	return t.others
}
