package registration

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// hubSource is the user of hub-source on the hub.
const hubSource = "system:serviceaccount:hawser:hawser-hub-source"

// rules are the rules of a role.
type rules []rbacv1.PolicyRule

func (l rules) allows(verb, group, resource, name string) bool {
	return slices.ContainsFunc(l, func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.Verbs, verb) && slices.Contains(r.APIGroups, group) && slices.Contains(r.Resources, resource) &&
			(len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, name))
	})
}

// roles are the roles in deploy/hub-source-registration.
type roles struct {
	of       map[string]rules
	bindings []rbacv1.RoleBinding // a ClusterRoleBinding is one without a namespace
}

func shippedRoles(t testing.TB, files ...string) roles {
	t.Helper()
	all := roles{of: map[string]rules{}}
	for _, file := range files {
		readRoles(t, filepath.Join("../../../deploy/hub-source-registration", file), &all)
	}
	return all
}

// readRoles adds the roles and bindings of a file.
func readRoles(t testing.TB, file string, into *roles) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data))); ; {
		text, err := r.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		var role rbacv1.Role
		var binding rbacv1.RoleBinding
		if err = errors.Join(err, yaml.Unmarshal(text, &role)); err != nil {
			t.Fatal(err)
		}
		switch role.Kind {
		case "Role", "ClusterRole":
			into.of[role.Namespace+role.Name] = role.Rules
		case "RoleBinding", "ClusterRoleBinding":
			if err := yaml.UnmarshalStrict(text, &binding); err != nil {
				t.Fatal(err)
			}
			into.bindings = append(into.bindings, binding)
		}
	}
}

// grant reports whether the roles allow a request of a user.
func (s roles) grant(user, verb, group, resource, namespace, name string) bool {
	return slices.ContainsFunc(s.bindings, func(b rbacv1.RoleBinding) bool {
		subject := b.Subjects[0]
		return "system:serviceaccount:"+subject.Namespace+":"+subject.Name == user && (b.Namespace == "" || b.Namespace == namespace) &&
			s.of[b.Namespace+b.RoleRef.Name].allows(verb, group, resource, name)
	})
}

// path reports whether hub-source may read a path that belongs to no resource.
func (s roles) path(p string) bool {
	return slices.ContainsFunc(s.of["hawser-hub-source-registration"], func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.NonResourceURLs, p) && slices.Contains(r.Verbs, "get")
	})
}

// hub-source may impersonate that one account and no other. It may request tokens only in namespaces where it
// has bound itself, also if it controls clusters. None of its roles has a wildcard.
func TestRoles_AreNarrow(t *testing.T) {
	const clusters, certificates, coordination, rbac = "cluster.open-cluster-management.io", "certificates.k8s.io", "coordination.k8s.io", "rbac.authorization.k8s.io"
	shipped := shippedRoles(t, "rbac.yaml", "registration-controllers.yaml")
	for _, account := range []string{"default", "hawser-hub-source", "agent-registration-bootstrap"} {
		if shipped.grant(hubSource, "impersonate", "", "serviceaccounts", "open-cluster-management-hub", account) {
			t.Errorf("hub-source may be %s", account)
		}
	}
	for what, granted := range map[string]bool{
		"impersonate the same name elsewhere": shipped.grant(hubSource, "impersonate", "", "serviceaccounts", "kube-system", "grpc-server-sa"),
		"impersonate users":                   shipped.grant(hubSource, "impersonate", "", "users", "", "x"),
		"request tokens":                      shipped.grant(hubSource, "create", "", "serviceaccounts/token", "kube-system", "x"),
		"bind another role":                   shipped.grant(hubSource, "bind", rbac, "clusterroles", "", "cluster-admin"),
		"read other bindings":                 shipped.grant(hubSource, "list", rbac, "rolebindings", "", "x"),
		"accept a cluster by OCM's right":     shipped.grant(hubSource, "update", "register.open-cluster-management.io", "managedclusters/accept", "", "c"),
		"replace a ManagedCluster":            shipped.grant(hubSource, "update", clusters, "managedclusters", "", "c"),
		"delete a ManagedCluster":             shipped.grant(hubSource, "delete", clusters, "managedclusters", "", "c"),
		"create CSRs as itself":               shipped.grant(hubSource, "create", certificates, "certificatesigningrequests", "", "c"),
		"approve for another signer":          shipped.grant(hubSource, "approve", certificates, "signers", "", "kubernetes.io/kube-apiserver-client"),
		"sign for another signer":             shipped.grant(hubSource, "sign", certificates, "signers", "", "kubernetes.io/kube-apiserver-client"),
		"write another Lease":                 shipped.grant(hubSource, "patch", coordination, "leases", "kube-system", "kube-scheduler"),
		"delete another Lease":                shipped.grant(hubSource, "delete", coordination, "leases", "kube-system", "kube-scheduler"),
		"delete a namespace":                  shipped.grant(hubSource, "delete", "", "namespaces", "", "c"),
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

// registration-controllers.yaml contains the rights that docs/security.md lists for cluster control. Without that file
// hub-source has none of them.
func TestRoles_OfRegistrationControllers(t *testing.T) {
	const clusters, certificates = "cluster.open-cluster-management.io", "certificates.k8s.io"
	without, with := shippedRoles(t, "rbac.yaml"), shippedRoles(t, "rbac.yaml", "registration-controllers.yaml")
	for _, r := range []struct{ verb, group, resource, name string }{
		{"patch", clusters, "managedclusters", "c"},
		{"patch", clusters, "managedclusters/status", "c"},
		{"create", "", "namespaces", "c"},
		{"patch", "", "namespaces", "c"},
		{"create", "coordination.k8s.io", "leases", "managed-cluster-lease"},
		{"delete", "coordination.k8s.io", "leases", "managed-cluster-lease"},
		{"update", certificates, "certificatesigningrequests/approval", "c"},
		{"update", certificates, "certificatesigningrequests/status", "c"},
		{"delete", certificates, "certificatesigningrequests", "c"},
		{"approve", certificates, "signers", "open-cluster-management.io/grpc"},
		{"sign", certificates, "signers", "open-cluster-management.io/grpc"},
		{"delete", "addon.open-cluster-management.io", "managedclusteraddons", "c"},
		{"delete", "work.open-cluster-management.io", "manifestworks", "c"},
	} {
		if before, after := without.grant(hubSource, r.verb, r.group, r.resource, "", r.name), with.grant(hubSource, r.verb, r.group, r.resource, "", r.name); before || !after {
			t.Errorf("%v: granted %v by rbac.yaml alone, and %v with registration-controllers.yaml", r, before, after)
		}
	}
}
