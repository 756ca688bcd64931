package ocm

import (
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"slices"
	"strings"

	"github.com/hawser-io/hawser/internal/identity"
)

// Subject is the identity of an agent on the hub.
type Subject struct{ Cluster, Agent string }

// CommonName returns the common name, which is the user on the hub.
func (s Subject) CommonName() string { return UserPrefix + s.Cluster + ":" + s.Agent }

// Organizations returns the organizations, which are the groups of the user on the hub.
func (s Subject) Organizations() []string { return []string{UserPrefix + s.Cluster, AllClusters} }

var (
	oidCommonName   = asn1.ObjectIdentifier{2, 5, 4, 3}
	oidOrganization = asn1.ObjectIdentifier{2, 5, 4, 10}
)

// ParseSubject reads the subject of an agent. It needs one common name with cluster and agent, the organization
// of the cluster, optionally that of all clusters, and nothing else. With several common names, each program
// could read another one.
func ParseSubject(subject pkix.Name) (s Subject, err error) {
	names, organizations, err := attributes(subject)
	if err != nil {
		return s, err
	}
	if len(names) != 1 {
		return s, fmt.Errorf("it has %d common names, and needs one", len(names))
	}
	rest, found := strings.CutPrefix(names[0], UserPrefix)
	cluster, agent, both := strings.Cut(rest, ":")
	if !found || !both || cluster == "" || identity.CheckAgent(agent) != nil {
		return s, fmt.Errorf("the common name %q is not %sCLUSTER:AGENT", names[0], UserPrefix)
	}
	s = Subject{cluster, agent}
	if err := identity.CheckCluster(cluster); err != nil {
		return s, err
	}
	slices.Sort(organizations)
	own := UserPrefix + cluster
	if own == AllClusters {
		return s, fmt.Errorf("%q can be the name of no cluster: its organization is that of all clusters", cluster)
	}
	if both := []string{own, AllClusters}; slices.Equal(organizations, []string{own}) || slices.Equal(organizations, slices.Sorted(slices.Values(both))) {
		return s, nil
	}
	return s, fmt.Errorf("its organizations are %q: it needs %q, and may have %q", organizations, own, AllClusters)
}

// attributes returns the common names and organizations of a subject. [x509.ParseCertificateRequest] keeps all
// attributes.
func attributes(subject pkix.Name) (names, organizations []string, err error) {
	for _, a := range subject.Names {
		text, isText := a.Value.(string)
		switch {
		case !isText:
			return nil, nil, fmt.Errorf("the attribute %s is no text", a.Type)
		case a.Type.Equal(oidCommonName):
			names = append(names, text)
		case a.Type.Equal(oidOrganization):
			organizations = append(organizations, text)
		default:
			return nil, nil, fmt.Errorf("it has the attribute %s: only a common name and organizations are signed", a.Type)
		}
	}
	return names, organizations, nil
}
