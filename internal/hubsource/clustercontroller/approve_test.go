package clustercontroller

import (
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/ocm"
)

type csrs = []*certificatesv1.CertificateSigningRequest

// TestDecide_Renewals: an agent with a certificate gets another one for the same agent, and for no other, while
// its cluster is accepted.
func TestDecide_Renewals(t *testing.T) {
	member := clusterNamed("east", accepts, finalized, isAccepted, isAvailable)
	withdrawn := clusterNamed("east", finalized, isDenied, isAvailable)
	going := clusterNamed("east", accepts, func(c *clusterv1.ManagedCluster) { c.DeletionTimestamp = &metav1.Time{Time: start} })
	type edit = func(*certificatesv1.CertificateSigningRequest)
	changed := func(f edit) *certificatesv1.CertificateSigningRequest { return renewalCSR(t, f) }
	for _, c := range []struct {
		name    string
		cluster *clusterv1.ManagedCluster
		csr     *certificatesv1.CertificateSigningRequest
		want    string
	}{
		{"of a member", member, renewalCSR(t), "approved east-1"},
		{"of a withdrawn one", withdrawn, renewalCSR(t), "denied east-1"},
		{"of one that was never accepted", clusterNamed("east", isAvailable), renewalCSR(t), "denied east-1"},
		{"of one that goes", going, renewalCSR(t), "denied east-1"},
		{"of one that is gone", nil, renewalCSR(t), "denied east-1"},
		{"denied before it was accepted", member, renewalCSR(t, condition(certificatesv1.CertificateDenied, reasonNotAMember)), "dropped east-1"},
		{"denied by a person", member, renewalCSR(t, condition(certificatesv1.CertificateDenied, "no")), ""},
		{"denied, and still withdrawn", withdrawn, renewalCSR(t, condition(certificatesv1.CertificateDenied, reasonNotAMember)), ""},
		{"approved already", member, renewalCSR(t, condition(certificatesv1.CertificateApproved, "x")), ""},
		{"failed already", member, renewalCSR(t, condition(certificatesv1.CertificateFailed, "x")), ""},
		{"has its certificate", member, changed(func(c *certificatesv1.CertificateSigningRequest) { c.Status.Certificate = []byte("x") }), ""},
		{"created by another user, with the annotation", member, changed(func(c *certificatesv1.CertificateSigningRequest) { c.Spec.Username = "mallory" }), ""},
		{"for another signer", member, changed(func(c *certificatesv1.CertificateSigningRequest) {
			c.Spec.SignerName = "kubernetes.io/kube-apiserver-client"
		}), ""},
		{"of an add-on", member, changed(func(c *certificatesv1.CertificateSigningRequest) { c.Labels[ocm.AddOnLabel] = "search" }), ""},
		{"for another agent of the cluster", member, changed(func(c *certificatesv1.CertificateSigningRequest) {
			c.Annotations[ocm.RequesterAnnotation] = userOf("east", "other")
		}), ""},
		{"for another cluster", member, csrOf(t, "east-1", "west", "agent", userOf("east", "agent"), newKey(t), func(c *certificatesv1.CertificateSigningRequest) {
			c.Labels[clusterv1.ClusterNameLabelKey] = "east"
		}), ""},
		{"with the subject of another cluster", member, csrOf(t, "east-1", "west", "agent", userOf("west", "agent"), newKey(t), func(c *certificatesv1.CertificateSigningRequest) {
			c.Labels[clusterv1.ClusterNameLabelKey] = "east"
		}), ""},
		{"by a bootstrap user", member, changed(func(c *certificatesv1.CertificateSigningRequest) {
			c.Annotations[ocm.RequesterAnnotation] = bootstrapUser
		}), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := clusterState{name: "east", cluster: c.cluster, renewal: &renewal{written: start, seen: start}, requests: csrs{c.csr}, now: start}
			if got := reported(effects{decisions: decide(rules{}, s).decisions}); got != c.want {
				t.Errorf("decided %q, want %q", got, c.want)
			}
		})
	}
}

// TestDecide_FirstCSRs: clusters of configured users are accepted automatically, once, for one key, and before
// any other decision.
func TestDecide_FirstCSRs(t *testing.T) {
	first, second := newKey(t), newKey(t)
	by := func(name, user string, key any) *certificatesv1.CertificateSigningRequest {
		k := first
		if key == 2 {
			k = second
		}
		return csrOf(t, name, "east", "agent", user, k)
	}
	requested, err := validate(by("x", bootstrapUser, 1))
	if err != nil {
		t.Fatal(err)
	}
	claimed := func(c *clusterv1.ManagedCluster) { c.Annotations = map[string]string{KeyAnnotation: requested.key()} }
	refused := func(c *clusterv1.ManagedCluster) { c.Annotations = map[string]string{KeyAnnotation: NoKey} }
	member := func(c *clusterv1.ManagedCluster) { c.Annotations = map[string]string{MemberAnnotation: "true"} }
	made := func(c *clusterv1.ManagedCluster) { c.CreationTimestamp = metav1.NewTime(start) }
	denial := by("d", "mallory", 2)
	condition(certificatesv1.CertificateDenied, "KubectlDeny")(denial)
	approval := by("d", "mallory", 2)
	condition(certificatesv1.CertificateApproved, "KubectlApprove")(approval)
	before := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "east", CreationTimestamp: metav1.NewTime(start.Add(-time.Minute)), Labels: map[string]string{clusterv1.ClusterNameLabelKey: "east"}}}
	since := before.DeepCopy()
	since.CreationTimestamp = metav1.NewTime(start)
	older := func(c *certificatesv1.CertificateSigningRequest) *certificatesv1.CertificateSigningRequest {
		c.CreationTimestamp = metav1.NewTime(start.Add(-time.Minute))
		return c
	}
	owned := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "east", Labels: map[string]string{clusterv1.ClusterNameLabelKey: "east"}}}
	for _, c := range []struct {
		name      string
		cluster   *clusterv1.ManagedCluster
		requests  csrs
		namespace *corev1.Namespace
		want      string
		key       string
	}{
		{"of a configured user", clusterNamed("east"), csrs{by("a", bootstrapUser, 1)}, nil, "taints=unreachable; claim; accept", requested.key()},
		{"of another user", clusterNamed("east"), csrs{by("a", "mallory", 1)}, nil, "taints=unreachable", ""},
		{"before the cluster", nil, csrs{by("a", bootstrapUser, 1)}, nil, "", ""},
		{"of two keys, the older one", clusterNamed("east"), csrs{by("a", bootstrapUser, 2), older(by("b", bootstrapUser, 1))}, nil, "taints=unreachable; claim; accept", requested.key()},
		{"claimed", clusterNamed("east", accepts, finalized, isAccepted, isAvailable, claimed), csrs{by("a", bootstrapUser, 2), by("b", bootstrapUser, 1)}, nil, "approved b; after 5m0s", ""},
		{"claimed, requested twice", clusterNamed("east", accepts, finalized, isAccepted, isAvailable, claimed), csrs{by("a", bootstrapUser, 1), by("b", bootstrapUser, 1)}, nil, "approved a; approved b; after 5m0s", ""},
		{"claimed by another key, whose CSR is long gone", clusterNamed("east", accepts, finalized, isAccepted, isAvailable, claimed), csrs{by("a", bootstrapUser, 2)}, nil, "after 5m0s", ""},
		{"claimed, and withdrawn by a person", clusterNamed("east", finalized, isDenied, isAvailable, claimed), csrs{by("a", bootstrapUser, 1)}, nil, "deny; after 5m0s", ""},
		{"denied by a person", clusterNamed("east", isDenied, isAvailable), csrs{by("a", bootstrapUser, 1)}, nil, "deny; after 5m0s", ""},
		{"denied by a person before it was accepted", clusterNamed("east", refused), csrs{by("a", bootstrapUser, 1)}, nil, "taints=unreachable; HubAcceptedManagedCluster=False/HubClusterAdminDenied; after 5m0s", ""},
		{"accepted by a person, not joined", clusterNamed("east", accepts, finalized, isAccepted, isAvailable), csrs{by("a", bootstrapUser, 1)}, nil, "claim; after 5m0s", requested.key()},
		{"joined", clusterNamed("east", accepts, finalized, isAccepted, isJoined, isAvailable), csrs{by("a", bootstrapUser, 1)}, nil, "member; after 5m0s", ""},
		{"joined, by the key that is claimed", clusterNamed("east", accepts, finalized, isAccepted, isJoined, isAvailable, claimed), csrs{by("a", bootstrapUser, 1)}, nil, "member; after 5m0s", ""},
		{"named like a namespace of others", clusterNamed("east"), csrs{by("a", bootstrapUser, 1)}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "east"}}, "taints=unreachable", ""},
		{"restored without its status, with its marks", clusterNamed("east", accepts, finalized, member), csrs{by("a", bootstrapUser, 1)}, nil, "taints=unreachable; HubAcceptedManagedCluster=True/HubClusterAdminAccepted; after 5m0s", ""},
		{"restored without its status, with its finalizer", clusterNamed("east", accepts, finalized, tainted(clusterv1.ManagedClusterTaintUnreachable)), csrs{by("a", bootstrapUser, 1)}, nil, "member; HubAcceptedManagedCluster=True/HubClusterAdminAccepted; after 5m0s", ""},
		{"denied while no controller ran, and restored without its status", clusterNamed("east", finalized), nil, nil, "taints=unreachable; deny; member", ""},
		{"restored without its status, not accepted", clusterNamed("east", member), csrs{by("a", bootstrapUser, 1)}, nil, "taints=unreachable; deny", ""},
		{"created again from a file, over its namespace", clusterNamed("east", accepts, finalized, isAccepted, isAvailable, made), csrs{by("a", bootstrapUser, 1)}, before, "after 5m0s", ""},
		{"accepted by a person, with the namespace that it got", clusterNamed("east", accepts, finalized, isAccepted, isAvailable, made), csrs{by("a", bootstrapUser, 1)}, since, "claim; after 5m0s", requested.key()},
		{"a request was denied by a person", clusterNamed("east"), csrs{by("a", bootstrapUser, 1), denial}, nil, "taints=unreachable; deny", ""},
		{"a request of an accepted one was denied", clusterNamed("east", accepts, finalized, isAccepted, isAvailable), csrs{by("a", bootstrapUser, 1), denial}, nil, "deny; after 5m0s", ""},
		{"another request was approved by a person", clusterNamed("east", accepts, finalized, isAccepted, isAvailable), csrs{by("a", bootstrapUser, 1), approval}, nil, "member; after 5m0s", ""},
		{"approved before the acceptance", clusterNamed("east"), csrs{approval}, nil, "taints=unreachable", ""},
		{"named like its own namespace", clusterNamed("east"), csrs{by("a", bootstrapUser, 1)}, owned, "taints=unreachable", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := clusterState{name: "east", cluster: c.cluster, renewal: &renewal{written: start, seen: start}, requests: c.requests, namespace: c.namespace, now: start}
			e := decide(rules{users: []string{bootstrapUser}}, s)
			if got := reported(e); got != c.want {
				t.Errorf("decided %q, want %q", got, c.want)
			}
			if c.key != "" && e.change.claim != c.key {
				t.Errorf("claimed %s, want %s", e.change.claim, c.key)
			}
		})
	}
}
