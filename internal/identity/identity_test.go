package identity_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"strings"
	"testing"

	"github.com/hawser-io/hawser/internal/identity"
)

func TestMapping_FromCertificate(t *testing.T) {
	m := identity.Mapping{
		{CommonName: "hub-east", Role: identity.Source, Name: "east"},
		{Organization: "platform", Role: identity.Operator, Name: "platform"},
	}
	if err := m.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		cn   string
		orgs []string
		want string // "": rejected
	}{
		{cn: "system:open-cluster-management:c1", want: "agent/c1"},
		{cn: "system:open-cluster-management:c1:agent", want: "agent/c1"},
		{cn: "system:open-cluster-management:c1:x7k2", want: "agent/c1"},
		{cn: "system:open-cluster-management:"},
		{cn: "system:open-cluster-management::agent"},
		{cn: "system:open-cluster-management:C1"},
		{cn: "system:open-cluster-management:a.b:agent"},
		{cn: "system:open-cluster-management:a/b"},
		{cn: "system:open-cluster-management:c1:"},
		{cn: "system:open-cluster-management:c1:agent:more"},
		{cn: "hub-east", want: "source/east"},
		{cn: "hub-west"},
		{cn: "anna", orgs: []string{"people", "platform"}, want: "operator/platform"},
		{cn: ""},
	} {
		got, err := m.FromCertificate(&x509.Certificate{Subject: pkix.Name{CommonName: c.cn, Organization: c.orgs}})
		if c.want == "" {
			if err == nil {
				t.Errorf("%q %v: got %v, want an error", c.cn, c.orgs, got)
			}
			continue
		}
		if err != nil || got.String() != c.want {
			t.Errorf("%q %v: got %v, %v; want %s", c.cn, c.orgs, got, err, c.want)
		}
	}
}

func TestMapping_ValidateRefuses(t *testing.T) {
	for name, r := range map[string]identity.Rule{
		"both names": {CommonName: "a", Organization: "b", Role: identity.Source, Name: "x"},
		"no name":    {Role: identity.Source, Name: "x"},
		"agent":      {CommonName: "a", Role: identity.Agent, Name: "c1"},
		"empty name": {CommonName: "a", Role: identity.Viewer},

		"clusters of a viewer": {CommonName: "a", Role: identity.Viewer, Name: "v", Clusters: []string{"c1"}},
		"quota of an operator": {CommonName: "a", Role: identity.Operator, Name: "o", Quota: identity.Limits{Works: 1}},
		"no name of a cluster": {CommonName: "a", Role: identity.Source, Name: "x", Clusters: []string{"c1", "*"}},
		"no prefix":            {CommonName: "a", Role: identity.Source, Name: "x", ClusterPrefixes: []string{""}},
		"pattern":              {CommonName: "a", Role: identity.Source, Name: "x", ClusterPrefixes: []string{"edge-*"}},
		"negative quota":       {CommonName: "a", Role: identity.Source, Name: "x", Quota: identity.Limits{Bytes: -1}},
	} {
		if (identity.Mapping{r}).Validate() == nil {
			t.Errorf("%s: must be refused", name)
		}
	}
}

// TestMapping_OneSourceHasOneReach checks that all rules of a source have the same allowed clusters, because
// any of its certificates may be used.
func TestMapping_OneSourceHasOneReach(t *testing.T) {
	one := identity.Rule{CommonName: "a", Role: identity.Source, Name: "hub", ClusterPrefixes: []string{"edge-"}, Quota: identity.Limits{Works: 1}}
	same, other, wider := one, one, one
	same.CommonName, other.Name, wider.ClusterPrefixes = "b", "another", nil
	other.Quota.Works = 2
	if err := (identity.Mapping{one, other, same}).Validate(); err != nil {
		t.Error(err)
	}
	if (identity.Mapping{one, wider}).Validate() == nil {
		t.Error("a rule gives a source that another one limits all clusters")
	}
	if r := one.AllowedClusters(); !r.Covers("edge-1") || r.Covers("edge") || !wider.AllowedClusters().Covers("any") {
		t.Errorf("%+v", r)
	}
}

// TestCheckAgent checks that names of agents of Open Cluster Management and Hawser are valid, and that terminal
// control characters are not.
func TestCheckAgent(t *testing.T) {
	for _, name := range []string{"a", "x8kq2", "agent1", "klusterlet-work", "9f1c2d3e-0000-4000-8000-000000000000", "Agent_1.example", strings.Repeat("a", 253)} {
		if err := identity.CheckAgent(name); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"", "-a", "a-", "a b", "a:b", "a/b", "a\x1b[2J", "a\n", "ä", "a\u009b", "a\u202eb", "a\xff", "a\x00b", strings.Repeat("a", 254)} {
		err := identity.CheckAgent(name)
		if err == nil || strings.ContainsAny(err.Error(), "\x1b\n\x00\u009b\u202e") {
			t.Errorf("%q: %v", name, err)
		}
		c := &x509.Certificate{Subject: pkix.Name{CommonName: "system:open-cluster-management:east:" + name}}
		if _, err := identity.Mapping(nil).FromCertificate(c); err == nil || strings.ContainsAny(err.Error(), "\x1b\n\x00\u009b\u202e") {
			t.Errorf("an agent %q: %v", name, err)
		}
	}
}
