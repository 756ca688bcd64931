package ocm

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "open-cluster-management.io/api/cluster/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/test/e2e/harness"
)

const (
	clusterLabel = "open-cluster-management.io/cluster-name"
	grpcSigner   = "open-cluster-management.io/grpc"
	grpcAccount  = "system:serviceaccount:" + hubNamespace + ":grpc-server-sa"
	// evictAfter is the grace period for works of a hub that a work agent no longer knows. The default is 60
	// minutes; a test sets less if it cannot wait. A moved work must arrive before the period ends.
	evictAfter = 45 * time.Second
)

// klusterlet is a klusterlet of OCM on the managed cluster. It runs the registration agent, and the work agent
// once there is a certificate, as OCM's operator does.
type klusterlet struct {
	*rig
	name               string
	bootstrap, home    string // directories of files that are Secrets in a cluster
	registration, work *supervised
}

// newKlusterlet runs the registration agent of a cluster that joins at a gRPC endpoint.
func (r *rig) newKlusterlet(name, endpoint, token string) *klusterlet {
	r.Helper()
	k := &klusterlet{rig: r, name: name, bootstrap: filepath.Join(r.dir, name, "bootstrap"), home: filepath.Join(r.dir, name, "hub-kubeconfig")}
	k.pointAt("hub", endpoint, token)
	if err := os.MkdirAll(k.home, 0o700); err != nil {
		r.Fatal(err)
	}
	k.registration = r.program(name+"-registration", "registration agent", registrationEnv, k.registrationArgs(true)...)
	return k
}

// registrationEnv makes the registration agent check its certificate often.
var registrationEnv = []string{"HAWSER_TEST_RESYNC=2s", "HAWSER_TEST_RETRY=500ms", "CERT_CALLBACK_REFRESH_DURATION=1s"}

// registrationArgs returns the arguments that OCM's operator uses for the registration agent, with the driver
// grpc or kube.
func (k *klusterlet) registrationArgs(grpc bool) []string {
	args := []string{
		"--kubeconfig=" + k.spoke.KubeconfigPath, "--namespace=" + agentNamespace, "--disable-leader-election",
		"--spoke-cluster-name=" + k.name, "--bootstrap-kubeconfig=" + filepath.Join(k.bootstrap, "kubeconfig"),
		"--hub-kubeconfig-dir=" + k.home, "--cluster-healthcheck-period=5s",
	}
	if grpc {
		args = append(args, "--registration-auth=grpc",
			"--grpc-bootstrap-config="+filepath.Join(k.bootstrap, "config.yaml"), "--grpc-config="+filepath.Join(k.home, "config.yaml"))
	}
	return args
}

// workArgs returns the arguments that OCM's operator uses for the work agent.
func (k *klusterlet) workArgs(grpc bool) []string {
	source := []string{"--workload-source-driver=kube", "--workload-source-config=" + filepath.Join(k.home, "kubeconfig")}
	if grpc {
		source = []string{
			"--workload-source-driver=grpc", "--workload-source-config=" + filepath.Join(k.home, "config.yaml"),
			"--cloudevents-client-id=" + k.name + "-work-agent",
		}
	}
	return append(source, "--kubeconfig="+k.spoke.KubeconfigPath, "--namespace="+agentNamespace, "--disable-leader-election",
		"--spoke-cluster-name="+k.name, "--agent-id="+k.name, "--hub-kubeconfig-dir="+k.home,
		"--status-sync-interval=2s", "--appliedmanifestwork-eviction-grace-period="+evictAfter.String(),
		"--terminate-on-files="+filepath.Join(k.home, "kubeconfig"))
}

// pointAt writes the bootstrap Secret. hub is the name of the hub in it: a klusterlet joins again when this name
// changes.
func (k *klusterlet) pointAt(hub, endpoint, token string) {
	k.Helper()
	ca, err := os.ReadFile(k.pki.CACert())
	if err != nil {
		k.Fatal(err)
	}
	k.write(filepath.Join(k.name, "bootstrap", "config.yaml"), fmt.Sprintf("url: %s\ncaData: %s\ntoken: %s\n", endpoint, base64.StdEncoding.EncodeToString(ca), token))
	k.write(filepath.Join(k.name, "bootstrap", "kubeconfig"), fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: bootstrap,
clusters: [{name: %s, cluster: {server: "https://%s"}}], contexts: [{name: bootstrap, context: {cluster: %s, user: bootstrap}}],
users: [{name: bootstrap, user: {token: none}}]}`, hub, endpoint, hub))
	k.sendToAgent(endpoint)
}

// sendToAgent updates the bootstrap Secret. The change ends a running registration agent. The agent reads the
// content from the files.
func (k *klusterlet) sendToAgent(version string) {
	k.Helper()
	secrets := k.spoke.kube.CoreV1().Secrets(agentNamespace)
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-hub-kubeconfig"}, StringData: map[string]string{"config.yaml": version}}
	_, err := secrets.Update(k.Context(), s, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = secrets.Create(k.Context(), s, metav1.CreateOptions{})
	}
	if err != nil {
		k.Fatal(err)
	}
}

// startWork runs the work agent.
func (k *klusterlet) startWork() {
	k.Helper()
	k.work = k.program(k.name+"-work", "work agent", []string{"HAWSER_TEST_RETRY=500ms", "CERT_CALLBACK_REFRESH_DURATION=1s"}, k.workArgs(true)...)
}

// cluster returns the ManagedCluster.
func (k *klusterlet) cluster(ctx context.Context) (*clusterv1.ManagedCluster, error) {
	return k.hub.clusters.ClusterV1().ManagedClusters().Get(ctx, k.name, metav1.GetOptions{})
}

// requests returns the cluster's own certificate requests.
func (k *klusterlet) requests(ctx context.Context) ([]certificatesv1.CertificateSigningRequest, error) {
	l, err := k.hub.kube.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{
		LabelSelector: clusterLabel + "=" + k.name + ",!open-cluster-management.io/addon-name",
	})
	if err != nil {
		return nil, err
	}
	return l.Items, nil
}

// sendsRequests waits for the join request of the cluster: its ManagedCluster and a certificate request.
func (k *klusterlet) sendsRequests() {
	k.Helper()
	k.eventually(func(ctx context.Context) error {
		if _, err := k.cluster(ctx); err != nil {
			return err
		}
		requests, err := k.requests(ctx)
		if err == nil && len(requests) == 0 {
			err = errors.New("no certificate request yet")
		}
		return err
	})
}

// accept approves the requests of grpc-server's account and sets hubAcceptsClient, as clusteradm accept does.
func (k *klusterlet) accept() {
	k.Helper()
	requests, err := k.requests(k.Context())
	if err != nil {
		k.Fatal(err)
	}
	for _, c := range requests {
		if c.Spec.SignerName == grpcSigner && c.Spec.Username != grpcAccount {
			k.Errorf("request %s was made by %s, which clusteradm does not approve", c.Name, c.Spec.Username)
		}
		if len(c.Status.Conditions) > 0 {
			continue
		}
		c.Status.Conditions = append(c.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "HubApprove", Message: "approved as clusteradm does",
		})
		if _, err := k.hub.kube.CertificatesV1().CertificateSigningRequests().UpdateApproval(k.Context(), c.Name, &c, metav1.UpdateOptions{}); err != nil {
			k.Fatal(err)
		}
	}
	k.setAccepted(true)
}

func (k *klusterlet) setAccepted(is bool) {
	k.Helper()
	k.patchCluster(fmt.Sprintf(`{"spec":{"hubAcceptsClient":%t}}`, is))
}

func (k *klusterlet) patchCluster(patch string) {
	k.Helper()
	if _, err := k.hub.clusters.ClusterV1().ManagedClusters().Patch(k.Context(), k.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		k.Fatal(err)
	}
}

// hasCondition waits until the ManagedCluster has a condition.
func (k *klusterlet) hasCondition(name string, want metav1.ConditionStatus) {
	k.Helper()
	k.eventually(func(ctx context.Context) error {
		c, err := k.cluster(ctx)
		if err != nil {
			return err
		}
		if !meta.IsStatusConditionPresentAndEqual(c.Status.Conditions, name, want) {
			return fmt.Errorf("%s is not %s: %v", name, want, c.Status.Conditions)
		}
		return nil
	})
}

// certified waits until the klusterlet has its certificate on disk.
func (k *klusterlet) certified() {
	k.Helper()
	k.eventually(func(context.Context) error {
		_, err := os.Stat(filepath.Join(k.home, "tls.crt"))
		return err
	})
}

// writes creates or changes a work on the hub.
func (k *klusterlet) writes(name, value string) {
	k.Helper()
	w := harness.NewWork(k.T, k.name, name, harness.ConfigMapYAML("default", name, value))
	works := k.hub.works.WorkV1().ManifestWorks(k.name)
	k.eventually(func(ctx context.Context) error {
		is, err := works.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			_, err = works.Create(ctx, w, metav1.CreateOptions{})
		case err == nil:
			is.Spec = w.Spec
			_, err = works.Update(ctx, is, metav1.UpdateOptions{})
		}
		return err
	})
}

// delivers writes a work, and waits for its ConfigMap and its status.
func (k *klusterlet) delivers(name, value string) {
	k.Helper()
	k.writes(name, value)
	k.eventually(func(ctx context.Context) error {
		m, err := k.spoke.kube.CoreV1().ConfigMaps("default").Get(ctx, name, metav1.GetOptions{})
		if err == nil && !hasValue(m, value) {
			err = fmt.Errorf("ConfigMap %s has %v", name, m.Data)
		}
		return err
	})
	k.eventually(func(ctx context.Context) error {
		is, err := k.hub.works.WorkV1().ManifestWorks(k.name).Get(ctx, name, metav1.GetOptions{})
		if err == nil && !applied(is) {
			err = fmt.Errorf("work %s has %s", name, harness.StatusText(is))
		}
		return err
	})
}

func hasValue(m *corev1.ConfigMap, value string) bool {
	for _, v := range m.Data {
		if v == value {
			return true
		}
	}
	return false
}

func applied(w *workv1.ManifestWork) bool {
	c := meta.FindStatusCondition(w.Status.Conditions, workv1.WorkAvailable)
	return c != nil && c.Status == metav1.ConditionTrue && c.ObservedGeneration == w.Generation
}

// joined joins a cluster with any server at the endpoint: token, acceptance, Available, first work. flags are
// for kubectl create token.
func joined(r *rig, name, endpoint string, flags ...string) *klusterlet {
	r.Helper()
	k := r.newKlusterlet(name, endpoint, r.token(flags...))
	k.sendsRequests()
	k.accept()
	k.certified()
	k.startWork()
	k.hasCondition(clusterv1.ManagedClusterConditionHubAccepted, metav1.ConditionTrue)
	k.hasCondition(clusterv1.ManagedClusterConditionJoined, metav1.ConditionTrue)
	k.hasCondition(clusterv1.ManagedClusterConditionAvailable, metav1.ConditionTrue)
	k.delivers("first", "1")
	return k
}

// losesItsLease stops the registration agent until the hub shows an unknown availability, and starts it again.
func (k *klusterlet) losesItsLease() {
	k.Helper()
	k.patchCluster(`{"spec":{"leaseDurationSeconds":2}}`)
	k.registration.end()
	k.hasCondition(clusterv1.ManagedClusterConditionAvailable, metav1.ConditionUnknown)
	k.registration.start()
	k.hasCondition(clusterv1.ManagedClusterConditionAvailable, metav1.ConditionTrue)
	k.patchCluster(`{"spec":{"leaseDurationSeconds":60}}`)
}

// renews waits until the klusterlet has a new certificate.
func (k *klusterlet) renews() {
	k.Helper()
	file := filepath.Join(k.home, "tls.crt")
	before, err := os.ReadFile(file)
	if err != nil {
		k.Fatal(err)
	}
	harness.EventuallyWithin(k.T, signedFor+patience, func(context.Context) error {
		now, err := os.ReadFile(file)
		if err == nil && string(now) == string(before) {
			err = errors.New("the certificate is the same")
		}
		return err
	})
}

// TestOCMAlone: OCM's own gRPC server. A failure here is an error of the rig, not of Hawser.
//
// Scenario, if the certificate were renewed just before the add-on is added:
//
//	t1: the klusterlet renews its certificate. OCM's client reconnects a second later.
//	t2: the klusterlet requests the add-on's certificates. The requests are signed.
//	t3: the connection ends. The klusterlet cannot report the add-on, discards the certificates and requests again.
//	t4: it stops requesting, because too many requests exist.
//
// Result: the add-on is added long before the renewal.
func TestOCMAlone(t *testing.T) {
	r := newRig(t)
	r.renewals()
	addr := r.grpcServer()
	began := time.Now()
	k := joined(r, "cluster1", addr)
	t.Logf("joined and delivered after %s", time.Since(began).Round(time.Second))
	k.losesItsLease()
	t.Logf("lease lost and regained after %s", time.Since(began).Round(time.Second))
	k.hasAddOn()
	t.Logf("add-on has its certificates after %s", time.Since(began).Round(time.Second))
	k.renews()
	k.delivers("first", "2")
	t.Logf("renewed after %s", time.Since(began).Round(time.Second))
}
