package hubsource

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	addonv1alpha1 "open-cluster-management.io/api/addon/v1alpha1"
	addonversioned "open-cluster-management.io/api/client/addon/clientset/versioned"
	clusterversioned "open-cluster-management.io/api/client/cluster/clientset/versioned"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/hubsource/clustercontroller"
	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

const bootstrapUser = "system:serviceaccount:open-cluster-management:agent-registration-bootstrap"

// membersHub is a hub without OCM's registration controllers. hub-source's cluster controller serves its
// members, with the rights of deploy/.
type membersHub struct {
	*harness.ControlPlane
	clusters clusterversioned.Interface
	addons   addonversioned.Interface
	// asGRPCServer creates CSRs for requesters, with the account of hub-source.
	asGRPCServer kubernetes.Interface
	roots        *x509.CertPool
	registry     *prometheus.Registry
}

func newMembersHub(t *testing.T) *membersHub {
	t.Helper()
	h := &membersHub{ControlPlane: harness.NewControlPlane(t, "../../..", "hub-source", "manifestworks", 0), registry: prometheus.NewRegistry(), roots: x509.NewCertPool()}
	for _, definition := range []string{"managedclusters", "managedclusteraddons"} {
		file := "../../../deploy/crds/" + definition + ".yaml"
		h.Kubectl("apply", "--server-side", "-f", file)
		h.Kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", file)
	}
	h.Kubectl("create", "namespace", clustercontroller.OCMNamespace)
	h.Kubectl("apply", "-f", "../../../deploy/hub-source-registration/registration-controllers.yaml")
	h.Kubectl("create", "clusterrole", "makes-csrs", "--verb=create", "--resource=certificatesigningrequests.certificates.k8s.io")
	h.Kubectl("create", "clusterrolebinding", "makes-csrs", "--clusterrole=makes-csrs", "--serviceaccount="+clustercontroller.OCMNamespace+":grpc-server-sa")
	as := rest.CopyConfig(h.Admin)
	as.Impersonate = rest.ImpersonationConfig{UserName: ocm.Registrar}
	h.asGRPCServer = kubernetes.NewForConfigOrDie(as)
	h.clusters, h.addons = clusterversioned.NewForConfigOrDie(h.Admin), addonversioned.NewForConfigOrDie(h.Admin)
	return h
}

// serve runs the controller. It accepts clusters of these users automatically.
func (h *membersHub) serve(autoApproved ...string) {
	h.Helper()
	ca, err := pki.NewAuthority("clusters", pki.Starting(time.Now(), pki.AuthorityLifetime))
	if err != nil {
		h.Fatal(err)
	}
	h.roots.AppendCertsFromPEM(ca.CertificatePEM())
	dir := h.TempDir()
	s := clustercontroller.Signer{CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key"), Duration: time.Hour}
	if err := errors.Join(os.WriteFile(s.CertFile, ca.CertificatePEM(), 0o600), os.WriteFile(s.KeyFile, ca.KeyPEM(), 0o600)); err != nil {
		h.Fatal(err)
	}
	c, err := clustercontroller.New(clustercontroller.Config{
		Mode: clustercontroller.Auto, Signer: s, AutoApprovedUsers: autoApproved,
		Kube: kubernetes.NewForConfigOrDie(h.Limited), Clusters: clusterversioned.NewForConfigOrDie(h.Limited),
		Addons: addonversioned.NewForConfigOrDie(h.Limited), Metadata: metadata.NewForConfigOrDie(h.Limited),
		Registerer: h.registry, Health: &telemetry.Health{}, Log: slog.New(slog.NewTextHandler(h.Output(), nil)),
	})
	if err != nil {
		h.Fatal(err)
	}
	h.Client(c.Run)
}

// request creates a CSR of an agent, which user requested.
func (h *membersHub) request(name, cluster, user string, subject pkix.Name) {
	h.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		h.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject, DNSNames: []string{"hub.example.com"}}, key)
	if err != nil {
		h.Fatal(err)
	}
	csr := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{clusterv1.ClusterNameLabelKey: cluster}, Annotations: map[string]string{ocm.RequesterAnnotation: user}},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: ocm.Signer,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, certificatesv1.UsageClientAuth},
		},
	}
	if _, err := h.asGRPCServer.CertificatesV1().CertificateSigningRequests().Create(h.Context(), csr, metav1.CreateOptions{}); err != nil {
		h.Fatal(err)
	}
}

func agentOf(cluster string) string { return "system:open-cluster-management:" + cluster + ":agent" }

func subjectOf(cluster string) pkix.Name {
	return pkix.Name{CommonName: agentOf(cluster), Organization: []string{"system:open-cluster-management:" + cluster, "system:open-cluster-management:managed-clusters"}}
}

// csrHas waits until a CSR has a condition and, if it is to be signed, its certificate.
func (h *membersHub) csrHas(name string, want certificatesv1.RequestConditionType) {
	h.Helper()
	h.Eventually(func() error {
		csr, err := h.Kube.CertificatesV1().CertificateSigningRequests().Get(h.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(csr.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == want }) {
			return fmt.Errorf("CSR %s has no condition %s: %+v", name, want, csr.Status.Conditions)
		}
		if want == certificatesv1.CertificateApproved {
			return h.signed(csr)
		}
		return nil
	})
}

func (h *membersHub) signed(csr *certificatesv1.CertificateSigningRequest) error {
	block, _ := pem.Decode(csr.Status.Certificate)
	if block == nil {
		return fmt.Errorf("CSR %s has no certificate", csr.Name)
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return err
	}
	if len(c.DNSNames) > 0 || c.Subject.CommonName != agentOf(csr.Labels[clusterv1.ClusterNameLabelKey]) {
		return fmt.Errorf("CSR %s has a certificate of %v for %v", csr.Name, c.Subject, c.DNSNames)
	}
	_, err = c.Verify(x509.VerifyOptions{Roots: h.roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err
}

func (h *membersHub) patchCluster(name, patch string, subresources ...string) {
	h.Helper()
	if _, err := h.clusters.ClusterV1().ManagedClusters().Patch(h.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...); err != nil {
		h.Fatal(err)
	}
}

// shows waits until a cluster has these conditions, and exactly these taints.
func (h *membersHub) shows(name string, conditions map[string]metav1.ConditionStatus, taints ...string) {
	h.Helper()
	h.Eventually(func() error {
		c, err := h.clusters.ClusterV1().ManagedClusters().Get(h.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for kind, status := range conditions {
			if !meta.IsStatusConditionPresentAndEqual(c.Status.Conditions, kind, status) {
				return fmt.Errorf("cluster %s is not %s=%s: %+v", name, kind, status, c.Status.Conditions)
			}
		}
		var keys []string
		for _, t := range c.Spec.Taints {
			keys = append(keys, t.Key[strings.LastIndex(t.Key, "/")+1:])
		}
		if !slices.Equal(keys, taints) {
			return fmt.Errorf("cluster %s has the taints %v, want %v", name, keys, taints)
		}
		return nil
	})
}

// agent reports a cluster as available, and renews its Lease until stop.
func (h *membersHub) agent(name string) (stop func() error) {
	h.Helper()
	stop = h.Client(func(ctx context.Context) error {
		for tick := time.NewTicker(300 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return nil
			case <-tick.C:
			}
			patch := fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"))
			if _, err := h.Kube.CoordinationV1().Leases(name).Patch(ctx, ocm.LeaseName, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil && ctx.Err() == nil {
				return err
			}
		}
	})
	h.Eventually(func() error { // hub-source writes conditions at the same time
		c, err := h.clusters.ClusterV1().ManagedClusters().Get(h.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, kind := range []string{clusterv1.ManagedClusterConditionJoined, clusterv1.ManagedClusterConditionAvailable} {
			meta.SetStatusCondition(&c.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "Test"})
		}
		_, err = h.clusters.ClusterV1().ManagedClusters().UpdateStatus(h.Context(), c, metav1.UpdateOptions{})
		return err
	})
	return stop
}

// TestRegistrationControllers: on a kube-apiserver and with the rights of deploy/, a cluster joins, disconnects, reconnects,
// is denied, is accepted again, and leaves. The API server forbids none of that.
func TestRegistrationControllers(t *testing.T) {
	h := newMembersHub(t)
	h.serve(bootstrapUser)
	const (
		accepted  = clusterv1.ManagedClusterConditionHubAccepted
		available = clusterv1.ManagedClusterConditionAvailable
	)
	type is = map[string]metav1.ConditionStatus
	create := h.create

	// An operator accepts the first cluster, and a rule for its user accepts the second.
	create("east")
	h.request("east-1", "east", "system:bootstrap:abcdef", subjectOf("east"))
	h.shows("east", nil, "unreachable")
	h.Kubectl("certificate", "approve", "east-1")
	h.patchCluster("east", `{"spec":{"hubAcceptsClient":true}}`)
	h.csrHas("east-1", certificatesv1.CertificateApproved)
	h.shows("east", is{accepted: metav1.ConditionTrue}, "unreachable")
	create("west")
	h.request("west-1", "west", bootstrapUser, subjectOf("west"))
	h.csrHas("west-1", certificatesv1.CertificateApproved)
	h.shows("west", is{accepted: metav1.ConditionTrue}, "unreachable")

	// A certificate that is not for an agent is not signed, even if it is approved.
	h.request("east-eve", "east", "system:bootstrap:abcdef", pkix.Name{CommonName: "hawser:operator:eve"})
	h.Kubectl("certificate", "approve", "east-eve")
	h.csrHas("east-eve", certificatesv1.CertificateFailed)

	// The cluster is available while it renews its Lease. Without the Lease its add-ons are Unknown.
	stop := h.agent("east")
	h.shows("east", is{available: metav1.ConditionTrue, clusterv1.ManagedClusterConditionClockSynced: metav1.ConditionTrue})
	addon := &addonv1alpha1.ManagedClusterAddOn{ObjectMeta: metav1.ObjectMeta{Namespace: "east", Name: "search"}}
	if _, err := h.addons.AddonV1alpha1().ManagedClusterAddOns("east").Create(t.Context(), addon, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	h.shows("east", is{available: metav1.ConditionUnknown}, "unreachable")
	if a, err := h.addons.AddonV1alpha1().ManagedClusterAddOns("east").Get(t.Context(), "search", metav1.GetOptions{}); err != nil || !meta.IsStatusConditionPresentAndEqual(a.Status.Conditions, "Available", metav1.ConditionUnknown) {
		t.Errorf("the add-on of a disconnected cluster: %+v, %v", a, err)
	}
	h.agent("east")
	h.shows("east", is{available: metav1.ConditionTrue})

	// Acceptance is withdrawn, and granted again.
	h.patchCluster("east", `{"spec":{"hubAcceptsClient":false}}`)
	h.shows("east", is{accepted: metav1.ConditionFalse})
	h.request("east-2", "east", agentOf("east"), subjectOf("east"))
	h.csrHas("east-2", certificatesv1.CertificateDenied)
	h.patchCluster("east", `{"spec":{"hubAcceptsClient":true}}`)
	h.Eventually(func() error {
		if _, err := h.Kube.CertificatesV1().CertificateSigningRequests().Get(t.Context(), "east-2", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the CSR that was denied is there, or not: %w", err)
		}
		return nil
	})
	h.request("east-3", "east", agentOf("east"), subjectOf("east"))
	h.csrHas("east-3", certificatesv1.CertificateApproved)

	h.end("west")
	h.forbids()
}

func (h *membersHub) create(name string) {
	h.Helper()
	c := &clusterv1.ManagedCluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: clusterv1.ManagedClusterSpec{LeaseDurationSeconds: 1}}
	if _, err := h.clusters.ClusterV1().ManagedClusters().Create(h.Context(), c, metav1.CreateOptions{}); err != nil {
		h.Fatal(err)
	}
}

// restore replaces a ManagedCluster by its state in a backup: with annotations and spec, without finalizers and
// status.
func (h *membersHub) restore(name string) {
	h.Helper()
	all := h.clusters.ClusterV1().ManagedClusters()
	c, err := all.Get(h.Context(), name, metav1.GetOptions{})
	if err != nil {
		h.Fatal(err)
	}
	h.patchCluster(name, `{"metadata":{"finalizers":null}}`)
	if err := all.Delete(h.Context(), name, metav1.DeleteOptions{}); err != nil {
		h.Fatal(err)
	}
	h.Eventually(func() error {
		_, err := all.Create(h.Context(), &clusterv1.ManagedCluster{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: c.Annotations}, Spec: c.Spec}, metav1.CreateOptions{})
		return err
	})
}

// TestClusterController_UnknownRequesters: a hub accepts the clusters of a user by rule, and is restored
// without status. An unidentified requester with a token of that user does not get the name of a cluster that
// has an agent. It does not get the name of a cluster that kubectl denied either. A request that was approved
// before a denial is not signed after it.
func TestClusterController_UnknownRequesters(t *testing.T) {
	h := newMembersHub(t)
	const accepted = clusterv1.ManagedClusterConditionHubAccepted
	type is = map[string]metav1.ConditionStatus

	// The request is approved, then its cluster is denied, and only then the signer starts.
	h.create("late")
	h.request("late-1", "late", "system:bootstrap:abcdef", subjectOf("late"))
	h.Kubectl("certificate", "approve", "late-1")
	denied := fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":"False","reason":"HubClusterAdminDenied","message":"","lastTransitionTime":%q}]}}`, accepted, time.Now().Add(time.Second).UTC().Format(time.RFC3339))
	h.patchCluster("late", denied, "status")
	h.serve(bootstrapUser)
	h.csrHas("late-1", certificatesv1.CertificateFailed)

	h.create("east")
	h.request("east-1", "east", "system:bootstrap:abcdef", subjectOf("east"))
	h.Kubectl("certificate", "approve", "east-1")
	h.patchCluster("east", `{"spec":{"hubAcceptsClient":true}}`)
	h.csrHas("east-1", certificatesv1.CertificateApproved)
	stop := h.agent("east")
	h.shows("east", is{accepted: metav1.ConditionTrue, clusterv1.ManagedClusterConditionClockSynced: metav1.ConditionTrue})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	h.create("west")
	h.patchCluster("west", `{"spec":{"hubAcceptsClient":true}}`)
	h.shows("west", is{accepted: metav1.ConditionTrue}, "unreachable")
	h.patchCluster("west", `{"spec":{"hubAcceptsClient":false}}`)
	h.shows("west", is{accepted: metav1.ConditionFalse}, "unreachable")
	h.create("young")
	h.request("young-1", "young", "system:bootstrap:abcdef", subjectOf("young"))
	h.Kubectl("certificate", "deny", "young-1")
	h.shows("young", is{accepted: metav1.ConditionFalse}, "unreachable")

	h.Kubectl("delete", "csr", "--all")
	stolen := []string{"east", "west", "young"}
	for _, name := range stolen {
		h.restore(name)
		h.request(name+"-2", name, bootstrapUser, subjectOf(name))
	}
	// When a later cluster is accepted, the earlier requests have been processed.
	h.create("fresh")
	h.request("fresh-1", "fresh", bootstrapUser, subjectOf("fresh"))
	h.csrHas("fresh-1", certificatesv1.CertificateApproved)
	for _, name := range stolen {
		csr, err := h.Kube.CertificatesV1().CertificateSigningRequests().Get(t.Context(), name+"-2", metav1.GetOptions{})
		if err != nil || len(csr.Status.Conditions) > 0 || len(csr.Status.Certificate) > 0 {
			t.Errorf("an unidentified requester's request for the name %s: %v, %+v", name, err, csr.Status.Conditions)
		}
		if c, err := h.clusters.ClusterV1().ManagedClusters().Get(t.Context(), name, metav1.GetOptions{}); err != nil || c.Spec.HubAcceptsClient != (name == "east") {
			t.Errorf("cluster %s is accepted: %v, %v", name, c.Spec.HubAcceptsClient, err)
		}
	}
	h.forbids()
}

// end deletes a cluster that has add-ons and works.
func (h *membersHub) end(name string) {
	h.Helper()
	if _, err := h.addons.AddonV1alpha1().ManagedClusterAddOns(name).Create(h.Context(), &addonv1alpha1.ManagedClusterAddOn{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "search"}}, metav1.CreateOptions{}); err != nil {
		h.Fatal(err)
	}
	work := filepath.Join(h.TempDir(), "work.yaml")
	if err := os.WriteFile(work, []byte("apiVersion: work.open-cluster-management.io/v1\nkind: ManifestWork\nmetadata: {name: w, namespace: "+name+"}\nspec: {workload: {manifests: []}}\n"), 0o600); err != nil {
		h.Fatal(err)
	}
	h.Kubectl("apply", "-f", work)
	if err := h.clusters.ClusterV1().ManagedClusters().Delete(h.Context(), name, metav1.DeleteOptions{}); err != nil {
		h.Fatal(err)
	}
	h.Eventually(func() error {
		if c, err := h.clusters.ClusterV1().ManagedClusters().Get(h.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is still there: %w, %+v", err, c.Status.Conditions)
		}
		return nil
	})
	if left := h.Kubectl("-n", name, "get", "manifestworks,managedclusteraddons,leases", "-o", "name"); left != "" {
		h.Errorf("of a deleted cluster is left %s", left)
	}
	h.Kubectl("get", "namespace", name)
}

// forbids reports an error for each request that the hub rejected as forbidden.
func (h *membersHub) forbids() {
	h.Helper()
	all, err := h.registry.Gather()
	if err != nil {
		h.Fatal(err)
	}
	for _, f := range all {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "result" && l.GetValue() == "forbidden" {
					h.Errorf("%s%v: a role is missing", f.GetName(), m.GetLabel())
				}
			}
		}
	}
}
