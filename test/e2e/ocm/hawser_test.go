package ocm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// hawser is Hawser's broker and hub-source, which replace OCM's gRPC server.
type hawser struct {
	addr, admin       string
	broker, hubSource *supervised
}

// The identities of the rig.
const (
	sourceID = "hub"
	grpcSA   = "system:serviceaccount:open-cluster-management:" + bootstrapper
)

// hawser starts broker and hub-source as on a hub with OCM's registration controllers.
func (r *rig) hawser() *hawser {
	r.Helper()
	r.renewals()
	return r.start("registration: {enabled: true, accessReviews: true, customSigners: ["+addOnSigner+"]}", "rbac.yaml")
}

// start starts broker and hub-source. more is additional configuration of hub-source, rights are files of
// deploy/hub-source-registration.
func (r *rig) start(more string, rights ...string) *hawser {
	r.Helper()
	r.kubectl(r.hub, "", "apply", "-k", filepath.Join(root, "deploy", "namespace"))
	r.kubectl(r.hub, "", "apply", "-n", "hawser", "-f", filepath.Join(root, "deploy", "hub-source", "rbac.yaml"))
	for _, name := range rights {
		r.kubectl(r.hub, "", "apply", "-f", filepath.Join(root, "deploy", "hub-source-registration", name))
	}
	h := &hawser{addr: testkit.FreeAddr(r.T), admin: testkit.FreeAddr(r.T)}
	cert, key := r.serving()
	h.broker = r.ready("broker", h.admin, "--config="+r.write("broker/config.yaml", fmt.Sprintf(`
listen: %s
adminListen: %s
dataDir: %s
tls: {certFile: %s, keyFile: %s, clientCAFile: %s}
identities: [{commonName: "hawser:source:%s", role: source, name: %s}]
registration: {source: %s}
tokens:
  audiences: [hawser]
  hubAudience: true
  mapping: [{user: "%s", role: bootstrap}]
`, h.addr, h.admin, filepath.Join(r.dir, "broker", "data"), cert, key, r.pki.CACert(), sourceID, sourceID, sourceID, grpcSA)))
	h.hubSource = r.hubSource(h.addr, more)
	return h
}

// renewals lets OCM's controllers approve the renewals of clusters that come over gRPC. Up to v1.2.1 they check
// whether the request's creator may renew for the user that the request names. The creator is the account of
// the gRPC server, and the groups are the creator's, not the cluster's. No role that OCM installs allows that,
// so OCM's own gRPC server needs this too.
func (r *rig) renewals() {
	r.Helper()
	rbac := r.hub.kube.RbacV1()
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "grpc-renewals"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"register.open-cluster-management.io"}, Resources: []string{"managedclusters/clientcertificates"}, Verbs: []string{"renew"}}},
	}
	if _, err := rbac.ClusterRoles().Create(r.Context(), role, metav1.CreateOptions{}); err != nil {
		r.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: role.ObjectMeta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:serviceaccounts:" + hubNamespace}},
	}
	if _, err := rbac.ClusterRoleBindings().Create(r.Context(), binding, metav1.CreateOptions{}); err != nil {
		r.Fatal(err)
	}
}

// hubSource runs hub-source with the rights of its ServiceAccount alone.
func (r *rig) hubSource(broker, more string) *supervised {
	r.Helper()
	if _, err := r.pki.Issue(pki.Request{Role: pki.Source, Name: sourceID, Valid: pki.Starting(time.Now(), 24*time.Hour)}, true); err != nil {
		r.Fatal(err)
	}
	admin := testkit.FreeAddr(r.T)
	config := r.write("hub-source/config.yaml", fmt.Sprintf(`
sourceID: %s
broker: %s
adminListen: %s
tls: {certFile: %s, keyFile: %s, caFile: %s}
%s
`, sourceID, broker, admin, r.pki.Cert(pki.Source, sourceID), r.pki.Key(pki.Source, sourceID), r.pki.CACert(), more))
	return r.ready("hub-source", admin, "--config="+config, "--kubeconfig="+r.kubeconfigOf("hawser", "hawser-hub-source"))
}

// ready runs a program of Hawser and waits until it is ready.
func (r *rig) ready(name, admin string, args ...string) *supervised {
	r.Helper()
	return r.supervise(childproc.Spec{
		Name: name, Path: filepath.Join(root, "bin", "hawser-"+name), Args: args, LogFile: filepath.Join(r.dir, name+".log"),
		Ready: func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/readyz", nil)
			if err != nil {
				return err
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return err
			}
			defer func() { _ = resp.Body.Close() }() // the body is not needed
			if resp.StatusCode != http.StatusOK {
				return fmt.Errorf("readyz: %s", resp.Status)
			}
			return nil
		},
	})
}

// TestKlusterlet: a klusterlet of OCM and OCM's controllers on its hub, with Hawser between them.
func TestKlusterlet(t *testing.T) {
	r := newRig(t)
	h := r.hawser()
	began := time.Now()
	step := func(what string) { t.Logf("%4.0fs %s", time.Since(began).Seconds(), what) }
	k := joined(r, "cluster1", h.addr) // with a token like that of clusteradm
	step("joined by token, accepted, available, first work delivered")
	k.losesItsLease()
	step("lease lost and regained")
	k.renews()
	k.delivers("first", "2")
	step("certificate renewed")
	k.acceptanceWithdrawn(h)
	step("acceptance withdrawn and given again")
	k.hasAddOn()
	step("add-on has its certificates")
	h.broker.end()
	h.broker.start()
	k.delivers("first", "5")
	step("broker restarted")
}

// TestHubWithoutOCM: a klusterlet of OCM with a hub without OCM. hub-source runs the registration controllers,
// with the definitions of deploy/.
func TestHubWithoutOCM(t *testing.T) {
	r := newPlanes(t)
	for _, name := range []string{"managedclusters", "managedclusteraddons", "manifestworks"} {
		file := filepath.Join(root, "deploy", "crds", name+".yaml")
		r.kubectl(r.hub, "", "apply", "--server-side", "-f", file)
		r.kubectl(r.hub, "", "wait", "--for=condition=Established", "--timeout=30s", "-f", file)
	}
	r.bootstrapAccount()
	r.installSpoke()
	h := r.start(fmt.Sprintf("registration: {enabled: true}\nregistrationControllers: {mode: \"on\", signer: {certFile: %s, keyFile: %s, duration: %s}}",
		r.pki.CACert(), r.pki.CAKey(), signedFor), "rbac.yaml", "registration-controllers.yaml")
	began := time.Now()
	step := func(what string) { t.Logf("%4.0fs %s", time.Since(began).Seconds(), what) }
	k := joined(r, "cluster1", h.addr, "--audience=hawser")
	step("joined by token, accepted, available, first work delivered")
	k.losesItsLease()
	step("lease lost and regained")
	k.renews()
	k.delivers("first", "2")
	step("certificate renewed")
	k.acceptanceWithdrawn(h)
	step("acceptance withdrawn and given again")
}

// acceptanceWithdrawn withdraws the acceptance. Works stop and their objects stay, until the acceptance is
// granted again. OCM's controllers change the condition only when no work is left, so the test waits for the
// decision of the broker.
func (k *klusterlet) acceptanceWithdrawn(h *hawser) {
	k.Helper()
	before := h.deniedWorks(k.rig)
	k.setAccepted(false)
	k.eventually(func(context.Context) error {
		if h.deniedWorks(k.rig) == before {
			return errors.New("the broker still serves works")
		}
		return nil
	})
	k.writes("first", "3")
	harness.Consistently(k.T, func(ctx context.Context) error {
		m, err := k.spoke.kube.CoreV1().ConfigMaps("default").Get(ctx, "first", metav1.GetOptions{})
		if err == nil && !hasValue(m, "2") {
			err = fmt.Errorf("the ConfigMap has %v", m.Data)
		}
		return err
	})
	k.setAccepted(true)
	k.delivers("first", "4")
}

// deniedWorks returns the number of subscriptions to works that the broker has denied.
func (h *hawser) deniedWorks(r *rig) (n float64) {
	r.Helper()
	req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, "http://"+h.admin+"/metrics", nil)
	if err != nil {
		r.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }() // the body was read
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		r.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^hawser_broker_subscribes_total\{.*result="denied".*\} (\S+)$`).FindAllStringSubmatch(string(text), -1) {
		v, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			r.Fatal(err)
		}
		n += v
	}
	return n
}
