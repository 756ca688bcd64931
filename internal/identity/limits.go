package identity

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Limits are the limits of a quota; 0 is the default.
type Limits struct {
	// Works is the maximum number of works; 0 is the default.
	Works int64 `json:"works,omitempty"`
	// Bytes is the maximum size of their specs together; 0 is the default.
	Bytes int64 `json:"bytes,omitempty"`
	// Clusters is the maximum number of clusters with works of a source; 0 is the default. Only in the quota of a
	// source.
	Clusters int64 `json:"clusters,omitempty"`
}

// Or returns l, with the limits of def where l has 0.
func (l Limits) Or(def Limits) Limits {
	return Limits{Works: cmp.Or(l.Works, def.Works), Bytes: cmp.Or(l.Bytes, def.Bytes), Clusters: cmp.Or(l.Clusters, def.Clusters)}
}

// Validate returns an error for a negative limit.
func (l Limits) Validate() error {
	if min(l.Works, l.Bytes, l.Clusters) < 0 {
		return errors.New("a quota is negative: use a positive number, or leave it out for the default")
	}
	return nil
}

// AllowedClusters are the clusters on which a source may have works. The zero value means all.
type AllowedClusters struct{ Clusters, Prefixes []string }

// AllowedClusters returns the allowed clusters of the rule's source.
func (r Rule) AllowedClusters() AllowedClusters {
	return AllowedClusters{Clusters: r.Clusters, Prefixes: r.ClusterPrefixes}
}

// Covers reports whether a cluster is allowed.
func (r AllowedClusters) Covers(cluster string) bool {
	return len(r.Clusters)+len(r.Prefixes) == 0 || slices.Contains(r.Clusters, cluster) ||
		slices.ContainsFunc(r.Prefixes, func(p string) bool { return strings.HasPrefix(cluster, p) })
}

// validateLimits returns what is wrong with the allowed clusters or the quota of rule i.
func (m Mapping) validateLimits(i int) error {
	r := m[i]
	if r.Role != Source && (len(r.Clusters)+len(r.ClusterPrefixes) > 0 || r.Quota != Limits{}) {
		return fmt.Errorf("clusters, clusterPrefixes and quota are for sources, and not for a %s: leave them out", r.Role)
	}
	if err := errors.Join(r.AllowedClusters().validate(), r.Quota.Validate()); err != nil {
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

// validate returns an error for names and prefixes that no cluster can have.
func (r AllowedClusters) validate() error {
	for _, c := range r.Clusters {
		if err := CheckCluster(c); err != nil {
			return fmt.Errorf("clusters: %w", err)
		}
	}
	for _, p := range r.Prefixes {
		// A prefix that ends in "-" is valid with one more letter.
		if err := CheckCluster(p + "a"); p == "" || err != nil {
			return fmt.Errorf("clusterPrefixes: no cluster has a name that begins with %q", p)
		}
	}
	return nil
}

// maxClusterName is the maximum length of a label of RFC 1123. maxAgentName leaves space for the cluster in a
// common name that etcd and clients show.
const maxClusterName, maxAgentName = 63, 253

// CheckCluster returns an error if name cannot be the name of a ManagedCluster. It is also the name of a
// namespace, so it must be a label of RFC 1123.
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

// CheckAgent returns an error if name cannot be the name of an agent. A valid name has only the characters of a
// label value, so it can be printed, whatever the certificate contains.
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
