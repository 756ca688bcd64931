// Package identity identifies peers. It maps a verified client certificate to an [Identity], a role and a name.
// It also provides the TLS credentials of every port and connection. They are read from files again when these
// change, so a renewed certificate or CA needs no restart.
package identity

import (
	"crypto/x509"
	"encoding/asn1"
	"fmt"
	"slices"
	"strings"
)

// Role is the role of a client. The broker's authorization table consists of roles.
type Role string

// The roles.
const (
	Agent    Role = "agent"
	Source   Role = "source"
	Operator Role = "operator"
	Viewer   Role = "viewer"
	// Bootstrap clients have a token, and may only request that a cluster joins. The name is a user of the hub,
	// which several clusters may share.
	Bootstrap Role = "bootstrap"
)

// Identity is a role and a name. The name is the cluster name of an agent or the source id of a source. It is
// any name of an operator or viewer, or the user name of a bootstrap account.
type Identity struct {
	Role Role
	Name string
}

// String returns "role/name", as logs and errors show it.
func (i Identity) String() string { return string(i.Role) + "/" + i.Name }

// Rule maps certificates to an identity. A certificate matches if its subject has this common name or, if the
// rule has an organization instead, this organization.
type Rule struct {
	// CommonName is the common name of the certificate's subject. A rule has either this or organization.
	CommonName string `json:"commonName,omitempty"`
	// Organization is an organization of the certificate's subject. A rule has either this or commonName.
	Organization string `json:"organization,omitempty"`
	// Role is source, operator or viewer. Required.
	Role Role `json:"role"`
	// Name is the source id of a source, or any name of an operator or viewer. Required.
	Name string `json:"name"`

	// Clusters are the names of clusters on which a source may have works. Without these and clusterPrefixes it may
	// use all.
	Clusters []string `json:"clusters,omitempty"`
	// ClusterPrefixes are name prefixes of further clusters on which a source may have works.
	ClusterPrefixes []string `json:"clusterPrefixes,omitempty"`
	// Quota is the quota of a source.
	Quota Limits `json:"quota,omitzero"`
}

// Mapping is a list of rules; the first that matches wins.
type Mapping []Rule

// Validate returns an error for the first rule that could never work, or that gives the role agent. Agents are
// identified by the names in their certificates only.
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

// agentPrefix is the prefix of the common name of every certificate that OCM's registration signs for an agent:
// system:open-cluster-management:<cluster>[:<agent>].
const agentPrefix = "system:open-cluster-management:"

// UserPrefix returns the prefix of the names of all users of the hub that are agents of a cluster.
func UserPrefix(cluster string) string { return agentPrefix + cluster + ":" }

// oidCommonName is the OID of the common name.
var oidCommonName = asn1.ObjectIdentifier{2, 5, 4, 3}

// FromCertificate returns the identity of a verified client certificate. Rules come first. If none matches, the
// common name must have the form that OCM gives to agents. Several common names are ambiguous, so they are
// rejected. An error names the subject.
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
