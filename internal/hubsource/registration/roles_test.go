package registration

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// hubSource is who hub-source is on the hub.
const hubSource = "system:serviceaccount:hawser:hawser-hub-source"

// rules are those of a role.
type rules []rbacv1.PolicyRule

func (l rules) allows(verb, group, resource, name string) bool {
	return slices.ContainsFunc(l, func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.Verbs, verb) && slices.Contains(r.APIGroups, group) && slices.Contains(r.Resources, resource) &&
			(len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, name))
	})
}

// roles are those that deploy/hub-source-registration ships.
type roles struct {
	of       map[string]rules
	bindings []rbacv1.RoleBinding // a ClusterRoleBinding is one without a namespace
}

func shippedRoles(t testing.TB) roles {
	t.Helper()
	data, err := os.ReadFile("../../../deploy/hub-source-registration/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all := roles{of: map[string]rules{}}
	for r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data))); ; {
		text, err := r.Read()
		if errors.Is(err, io.EOF) {
			return all
		}
		var role rbacv1.Role
		var binding rbacv1.RoleBinding
		if err = errors.Join(err, yaml.Unmarshal(text, &role)); err != nil {
			t.Fatal(err)
		}
		switch role.Kind {
		case "Role", "ClusterRole":
			all.of[role.Namespace+role.Name] = role.Rules
		case "RoleBinding", "ClusterRoleBinding":
			if err := yaml.UnmarshalStrict(text, &binding); err != nil {
				t.Fatal(err)
			}
			all.bindings = append(all.bindings, binding)
		}
	}
}

// grant says whether somebody may do something.
func (s roles) grant(user, verb, group, resource, namespace, name string) bool {
	return slices.ContainsFunc(s.bindings, func(b rbacv1.RoleBinding) bool {
		who := b.Subjects[0]
		return "system:serviceaccount:"+who.Namespace+":"+who.Name == user && (b.Namespace == "" || b.Namespace == namespace) &&
			s.of[b.Namespace+b.RoleRef.Name].allows(verb, group, resource, name)
	})
}

// path says whether hub-source may read a path that is none of a resource.
func (s roles) path(p string) bool {
	return slices.ContainsFunc(s.of["hawser-hub-source-registration"], func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.NonResourceURLs, p) && slices.Contains(r.Verbs, "get")
	})
}

// hub-source may be that one account and nobody else, and ask for no token but where it has bound
// itself. None of its roles has a wildcard.
func TestRoles_AreNarrow(t *testing.T) {
	shipped := shippedRoles(t)
	for _, account := range []string{"default", "hawser-hub-source", "agent-registration-bootstrap"} {
		if shipped.grant(hubSource, "impersonate", "", "serviceaccounts", "open-cluster-management-hub", account) {
			t.Errorf("hub-source may be %s", account)
		}
	}
	for what, granted := range map[string]bool{
		"impersonate the same name elsewhere": shipped.grant(hubSource, "impersonate", "", "serviceaccounts", "kube-system", "grpc-server-sa"),
		"impersonate users":                   shipped.grant(hubSource, "impersonate", "", "users", "", "x"),
		"ask for tokens":                      shipped.grant(hubSource, "create", "", "serviceaccounts/token", "kube-system", "x"),
		"bind another role":                   shipped.grant(hubSource, "bind", "rbac.authorization.k8s.io", "clusterroles", "", "cluster-admin"),
		"read other bindings":                 shipped.grant(hubSource, "list", "rbac.authorization.k8s.io", "rolebindings", "", "x"),
		"accept a cluster":                    shipped.grant(hubSource, "update", "register.open-cluster-management.io", "managedclusters/accept", "", "c"),
		"change a ManagedCluster":             shipped.grant(hubSource, "update", "cluster.open-cluster-management.io", "managedclusters", "", "c"),
		"create CSRs as itself":               shipped.grant(hubSource, "create", "certificates.k8s.io", "certificatesigningrequests", "", "c"),
		"write another Lease":                 shipped.grant(hubSource, "patch", "coordination.k8s.io", "leases", "kube-system", "kube-scheduler"),
	} {
		if granted {
			t.Errorf("hub-source may %s", what)
		}
	}
	for name, l := range shipped.of {
		for _, r := range l {
			if slices.Contains(slices.Concat(r.Verbs, r.Resources, r.APIGroups, r.NonResourceURLs), "*") {
				t.Errorf("%s: %v", name, r)
			}
		}
	}
}
