package identity

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Limits bound what there may be; 0 is the default.
type Limits struct {
	// Works is how many there may be; 0 is the default.
	Works int64 `json:"works,omitempty"`
	// Bytes is how many their specs may have together; 0 is the default.
	Bytes int64 `json:"bytes,omitempty"`
	// Clusters is on how many clusters a source may have works; 0 is the default. Only in the quota of a source.
	Clusters int64 `json:"clusters,omitempty"`
}

// Or returns l, with the limits of def where it has none.
func (l Limits) Or(def Limits) Limits {
	return Limits{Works: cmp.Or(l.Works, def.Works), Bytes: cmp.Or(l.Bytes, def.Bytes), Clusters: cmp.Or(l.Clusters, def.Clusters)}
}

// Validate reports a limit that nobody can mean.
func (l Limits) Validate() error {
	if min(l.Works, l.Bytes, l.Clusters) < 0 {
		return errors.New("a quota is negative: use a positive number, or leave it out for the default")
	}
	return nil
}

// AllowedClusters is where a source may have works; the zero value is everywhere.
type AllowedClusters struct{ Clusters, Prefixes []string }

// Reach returns that of the rule's source.
func (r Rule) Reach() AllowedClusters {
	return AllowedClusters{Clusters: r.Clusters, Prefixes: r.ClusterPrefixes}
}

// Covers reports whether a cluster is within reach.
func (r AllowedClusters) Covers(cluster string) bool {
	return len(r.Clusters)+len(r.Prefixes) == 0 || slices.Contains(r.Clusters, cluster) ||
		slices.ContainsFunc(r.Prefixes, func(p string) bool { return strings.HasPrefix(cluster, p) })
}

// validateLimits says what is wrong with where the source of rule i may have works, and how many.
func (m Mapping) validateLimits(i int) error {
	r := m[i]
	if r.Role != Source && (len(r.Clusters)+len(r.ClusterPrefixes) > 0 || r.Quota != Limits{}) {
		return fmt.Errorf("clusters, clusterPrefixes and quota are for sources, and not for a %s: leave them out", r.Role)
	}
	if err := errors.Join(r.Reach().validate(), r.Quota.Validate()); err != nil {
		return err
	}
	for _, o := range m[:i] {
		same := slices.Equal(o.Clusters, r.Clusters) && slices.Equal(o.ClusterPrefixes, r.ClusterPrefixes) && o.Quota == r.Quota
		if o.Role == r.Role && o.Name == r.Name && !same {
			return fmt.Errorf("source %q has other clusters or another quota in an earlier rule: give it the same in all", r.Name)
		}
	}
	return nil
}

// validate reports what no cluster can be called.
func (r AllowedClusters) validate() error {
	for _, c := range r.Clusters {
		if err := CheckCluster(c); err != nil {
			return fmt.Errorf("clusters: %w", err)
		}
	}
	for _, p := range r.Prefixes {
		// With a letter more a prefix that ends in "-" is a name.
		if err := CheckCluster(p + "a"); p == "" || err != nil {
			return fmt.Errorf("clusterPrefixes: no cluster has a name that begins with %q", p)
		}
	}
	return nil
}

// maxClusterName is the length of the longest label of RFC 1123, maxAgentName what leaves room for the
// cluster in a common name that etcd and clients show.
const maxClusterName, maxAgentName = 63, 253

// CheckCluster says why nothing can be called so that Open Cluster Management calls a
// ManagedCluster: its name is that of a namespace, a label of RFC 1123.
func CheckCluster(name string) error {
	alphanumeric := func(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' }
	ok := name != "" && len(name) <= maxClusterName && alphanumeric(name[0]) && alphanumeric(name[len(name)-1])
	for i := 0; ok && i < len(name); i++ {
		ok = alphanumeric(name[i]) || name[i] == '-'
	}
	if ok {
		return nil
	}
	return fmt.Errorf("%.80q is no name of a cluster: use at most %d lower-case letters, digits and \"-\", with a letter or digit at both ends",
		name, maxClusterName)
}

// CheckAgent says why no agent is called so. What is printed of it is text: a name has the characters of a
// label's value, whatever the certificate says.
func CheckAgent(name string) error {
	alphanumeric := func(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }
	ok := name != "" && len(name) <= maxAgentName && alphanumeric(name[0]) && alphanumeric(name[len(name)-1])
	for i := 0; ok && i < len(name); i++ {
		ok = alphanumeric(name[i]) || strings.IndexByte("-_.", name[i]) >= 0
	}
	if ok {
		return nil
	}
	return fmt.Errorf("%.80q is no name of an agent: use at most %d letters, digits, \"-\", \"_\" and \".\", with a letter or digit at both ends", name, maxAgentName)
}
