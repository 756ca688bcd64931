// Package identity says who is at the other end: it turns a verified client
// certificate into an [Identity], a role and a name, and serves the TLS
// credentials of every port and connection from files that are read again when
// they change, so that a renewed certificate or CA needs no restart.
package identity

import (
	"crypto/x509"
	"encoding/asn1"
	"fmt"
	"slices"
	"strings"
)

// Role is what a party is. The authorization table of the broker is written in
// roles.
type Role string

// The roles.
const (
	Agent    Role = "agent"
	Source   Role = "source"
	Operator Role = "operator"
	Viewer   Role = "viewer"
	// Bootstrap is who may ask that a cluster joins, by a token, and nothing else. Its name is a
	// user of the hub: several clusters may share it.
	Bootstrap Role = "bootstrap"
)

// Identity is a role and a name: the cluster name of an agent, the source id of
// a source, any name of an operator or viewer, the user name of a bootstrap account.
type Identity struct {
	Role Role
	Name string
}

// String returns "role/name", as logs and errors show it.
func (i Identity) String() string { return string(i.Role) + "/" + i.Name }

// Rule maps certificates to an identity. A certificate matches when its subject
// has this common name or, where the rule names an organization instead, this
// organization.
type Rule struct {
	// CommonName is that of the certificate's subject. A rule has this or organization.
	CommonName string `json:"commonName,omitempty"`
	// Organization is one of the certificate's subject. A rule has this or commonName.
	Organization string `json:"organization,omitempty"`
	// Role is source, operator or viewer. Required.
	Role Role `json:"role"`
	// Name is the source id of a source, any name of an operator or viewer. Required.
	Name string `json:"name"`

	// Clusters are those on which a source may have works, by their names. Without these and
	// clusterPrefixes it may on all.
	Clusters []string `json:"clusters,omitempty"`
	// ClusterPrefixes are how the names of further clusters begin on which a source may have
	// works.
	ClusterPrefixes []string `json:"clusterPrefixes,omitempty"`
	// Quota is how much a source may have.
	Quota Limits `json:"quota,omitzero"`
}

// Mapping is a list of rules; the first that matches wins.
type Mapping []Rule

// Validate reports the first rule that could never work or that would give an
// agent's identity away: agents come from their certificates' names only.
func (m Mapping) Validate() error {
	for i, r := range m {
		switch {
		case (r.CommonName == "") == (r.Organization == ""):
			return fmt.Errorf("identity rule %d: set exactly one of commonName and organization", i+1)
		case r.Role != Source && r.Role != Operator && r.Role != Viewer:
			return fmt.Errorf("identity rule %d: role is %q, use source, operator or viewer", i+1, r.Role)
		case r.Name == "":
			return fmt.Errorf("identity rule %d: name is empty, set the %s's name", i+1, r.Role)
		}
		if err := m.validateLimits(i); err != nil {
			return fmt.Errorf("identity rule %d: %w", i+1, err)
		}
	}
	return nil
}

// agentPrefix begins the common name of every certificate OCM's registration
// signs for an agent: system:open-cluster-management:<cluster>[:<agent>].
const agentPrefix = "system:open-cluster-management:"

// UserPrefix begins the names of all users of the hub that are agents of a cluster.
func UserPrefix(cluster string) string { return agentPrefix + cluster + ":" }

// oidCommonName is that of the attribute of a subject.
var oidCommonName = asn1.ObjectIdentifier{2, 5, 4, 3}

// FromCertificate returns the identity of a verified client certificate. Rules
// come first; without one, the common name must have the form OCM gives to
// agents. Of several common names nobody knows which one counts, so they are
// refused. The error says which subject nobody knows.
func (m Mapping) FromCertificate(c *x509.Certificate) (Identity, error) {
	if err := CheckCommonName(c.Subject); err != nil {
		return Identity{}, fmt.Errorf("certificate %w", err)
	}
	for _, r := range m {
		if r.CommonName != "" && r.CommonName == c.Subject.CommonName ||
			r.Organization != "" && slices.Contains(c.Subject.Organization, r.Organization) {
			return Identity{Role: r.Role, Name: r.Name}, nil
		}
	}
	if rest, ok := strings.CutPrefix(c.Subject.CommonName, agentPrefix); ok {
		cluster, agent, hasAgent := strings.Cut(rest, ":")
		if CheckCluster(cluster) == nil && (!hasAgent || CheckAgent(agent) == nil) {
			return Identity{Role: Agent, Name: cluster}, nil
		}
	}
	return Identity{}, fmt.Errorf("certificate subject %q maps to no identity", c.Subject.String())
}
