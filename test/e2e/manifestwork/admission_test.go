package manifestwork

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	workclient "open-cluster-management.io/api/client/work/clientset/versioned"
	workv1client "open-cluster-management.io/api/client/work/clientset/versioned/typed/work/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/local/fleet"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// denied is the prefix that the API server puts before the text of the webhook.
const denied = `admission webhook "manifestworkvalidators.admission.work.open-cluster-management.io" denied the request: `

// refused checks that the hub's answer is 400 with exactly this text.
func refused(t *testing.T, err error, text string) {
	t.Helper()
	if !apierrors.IsBadRequest(err) || err.Error() != denied+text {
		t.Errorf("answered %v, want 400 and %q", err, denied+text)
	}
}

// unfit returns changes of a valid work that the hub rejects, with the text of the rejection.
func unfit(t *testing.T) map[string]struct {
	change func(*workv1.ManifestWork)
	text   string
} {
	t.Helper()
	manifests := func(text ...string) func(*workv1.ManifestWork) {
		return func(w *workv1.ManifestWork) {
			w.Spec.Workload.Manifests = nil
			for _, m := range text {
				w.Spec.Workload.Manifests = append(w.Spec.Workload.Manifests, harness.Manifest(t, m))
			}
		}
	}
	const secret = "apiVersion: v1\nkind: Secret\nmetadata: "
	cm := harness.ConfigMapYAML("default", "twice", "x")
	deployment := "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: shop}\n"
	return map[string]struct {
		change func(*workv1.ManifestWork)
		text   string
	}{
		"no-manifests":    {manifests(), "manifests should not be empty"},
		"too-large":       {manifests(sizedManifest("a", 300_000), sizedManifest("b", 211_993)), "the size of manifests is 512001 bytes which exceeds the 512000 limit"},
		"one-too-large":   {manifests(cm, largeDefinition(600_000)), `the size of manifests is 600256 bytes which exceeds the 512000 limit; manifest 1, "CustomResourceDefinition" "policies.example.com", alone is too large: drop the descriptions in its schema, or let a Job in the work fetch and apply it, see docs/manifestwork.md#an-object-above-the-limit`},
		"no-name":         {manifests(cm, secret+"{namespace: default}\n"), "name must be set in manifest"},
		"generate-name":   {manifests(secret + "{name: a, generateName: a-}\n"), "generateName must not be set in manifest"},
		"duplicates":      {manifests(cm, secret+"{name: twice, namespace: default}\n", cm), "duplicate manifest for resource default/twice with resource type v1.ConfigMap"},
		"duplicate-group": {manifests(deployment, deployment), "duplicate manifest for resource shop/web with resource type apps/v1.Deployment"},
	}
}

// largeDefinition returns a definition with a description of size bytes.
func largeDefinition(size int) string {
	return "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: policies.example.com}\nspec: {description: " + strings.Repeat("x", size) + "}\n"
}

// sizedManifest returns a ConfigMap of size bytes of JSON on the hub.
func sizedManifest(name string, size int) string {
	frame := fmt.Sprintf(`{"apiVersion":"v1","data":{"key":""},"kind":"ConfigMap","metadata":{"name":%q,"namespace":"default"}}`, name)
	return harness.ConfigMapYAML("default", name, strings.Repeat("x", size-len(frame)))
}

func TestAdmission_RefusesUnfitWorks(t *testing.T) {
	t.Parallel()
	for name, tc := range unfit(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := harness.NewWork(t, cluster, "admission-create-"+name)
			tc.change(w)
			_, err := shared.HubAPI.Work.WorkV1().ManifestWorks(cluster).Create(t.Context(), w, metav1.CreateOptions{})
			refused(t, err, tc.text)
			if _, err := shared.Get(t.Context(), cluster, w.Name); !apierrors.IsNotFound(err) {
				t.Errorf("refused, and stored all the same: %v", err)
			}
		})
	}
}

func TestAdmission_TakesWorksUpToTheLimit(t *testing.T) {
	t.Parallel()
	w := harness.NewWork(t, cluster, "admission-largest", sizedManifest("admission-a", 300_000), sizedManifest("admission-b", 211_992))
	shared.Deliver(t, w)
}

func TestAdmission_RejectsInvalidatingChanges(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	w := shared.Deliver(t, harness.NewWork(t, cluster, "admission-update", harness.ConfigMapYAML(ns, "kept", "as it was")))
	for name, tc := range unfit(t) {
		harness.Eventually(t, func(ctx context.Context) error {
			live, err := shared.Get(ctx, cluster, w.Name)
			if err != nil {
				return err
			}
			tc.change(live)
			_, err = shared.HubAPI.Work.WorkV1().ManifestWorks(cluster).Update(ctx, live, metav1.UpdateOptions{})
			if apierrors.IsConflict(err) {
				return err
			}
			refused(t, err, tc.text)
			return nil
		})
		live, err := shared.Get(t.Context(), cluster, w.Name)
		if err != nil || live.Generation != w.Generation {
			t.Fatalf("%s: the work is at generation %d, was at %d: %v", name, live.Generation, w.Generation, err)
		}
	}
	shared.HasValue(t, cluster, ns, "kept", "as it was")
	// A valid change is accepted at once, also if only a label changes.
	shared.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) { w.Labels = map[string]string{"a": "b"} })
	shared.Ready(t, shared.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) {
		w.Spec.Workload.Manifests = []workv1.Manifest{harness.Manifest(t, harness.ConfigMapYAML(ns, "kept", "changed"))}
	}))
}

// kubectlOutput runs kubectl on the hub with a text on standard input. It returns its standard error, and
// whether it failed.
func kubectlOutput(t *testing.T, stdin string, args ...string) (stderr string, failed bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), shared.Kubectl(), append([]string{"--kubeconfig", shared.Hub.KubeconfigPath}, args...)...)
	var text bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(stdin), &text
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return strings.TrimSpace(text.String()), err != nil
}

const manifestWorkHead = "apiVersion: work.open-cluster-management.io/v1\nkind: ManifestWork\nmetadata: {name: %s, namespace: cluster1}\nspec:\n  workload:\n    manifests:"

func TestAdmission_KubectlShowsTheText(t *testing.T) {
	t.Parallel()
	head := fmt.Sprintf(manifestWorkHead, "admission-kubectl")
	got, failed := kubectlOutput(t, head+" []\n", "create", "-f", "-")
	want := `Error from server (BadRequest): error when creating "STDIN": ` + denied + "manifests should not be empty"
	if !failed || got != want {
		t.Errorf("kubectl prints %q, want %q", got, want)
	}

	// The response warns about fields that are admitted and have no effect on a cluster.
	manifests := `
    - {apiVersion: example.com/v1, kind: Widget, metadata: {name: a, namespace: default}}
    - {apiVersion: example.com/v2, kind: Widget, metadata: {name: a, namespace: default}}
`
	got, failed = kubectlOutput(t, head+manifests, "create", "--dry-run=server", "-f", "-")
	want = "Warning: manifests 0 and 1 are one object in two API versions: each overwrites the other one"
	if failed || got != want {
		t.Errorf("kubectl prints %q, want %q", got, want)
	}
}

// TestAdmission_SchemaRefusesImpossibleNames: the schema rejects names that no cluster accepts, before the
// webhook is called.
func TestAdmission_SchemaRefusesImpossibleNames(t *testing.T) {
	t.Parallel()
	for field, metadata := range map[string]string{"name": "{name: a/b, namespace: default}", "namespace": "{name: a, namespace: De_fault}"} {
		w := harness.NewWork(t, cluster, "admission-name", "apiVersion: v1\nkind: Secret\nmetadata: "+metadata+"\n")
		_, err := shared.HubAPI.Work.WorkV1().ManifestWorks(cluster).Create(t.Context(), w, metav1.CreateOptions{})
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.workload.manifests[0].metadata."+field) {
			t.Errorf("%s: answered %v", field, err)
		}
	}
}

// author returns a client of a user whose only right is to write works of the cluster.
func author(t *testing.T, name string) workv1client.ManifestWorkInterface {
	t.Helper()
	allow(t, name, rbacv1.PolicyRule{APIGroups: []string{workv1.GroupName}, Resources: []string{"manifestworks"}, Verbs: []string{"create", "get", "update"}})
	cfg, err := shared.Hub.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	cfg.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: []string{"authors"}}
	client, err := workclient.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return client.WorkV1().ManifestWorks(cluster)
}

// allow gives a user a right in the namespace of the cluster, until the test ends.
func allow(t *testing.T, user string, rule rbacv1.PolicyRule) {
	t.Helper()
	rbac := shared.HubAPI.Kube.RbacV1()
	meta := metav1.ObjectMeta{GenerateName: "admission-", Namespace: cluster}
	role, err := rbac.Roles(cluster).Create(t.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{rule}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rbac.Roles(cluster).Delete(context.Background(), role.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	bind(t, user, rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name})
}

func bind(t *testing.T, user string, role rbacv1.RoleRef) {
	t.Helper()
	bindings := shared.HubAPI.Kube.RbacV1().RoleBindings(cluster)
	b, err := bindings.Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "admission-", Namespace: cluster},
		RoleRef:    role, Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bindings.Delete(context.Background(), b.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// isDenied returns nil if the error is a rejection with this text.
func isDenied(err error, text string) error {
	if err == nil {
		return errors.New("it was taken")
	}
	if !apierrors.IsBadRequest(err) || err.Error() != denied+text {
		return fmt.Errorf("answered %w, want %q", err, denied+text)
	}
	return nil
}

func executor(namespace, name string) *workv1.ManifestWorkExecutor {
	return &workv1.ManifestWorkExecutor{Subject: workv1.ManifestWorkExecutorSubject{
		Type:           workv1.ExecutorSubjectTypeServiceAccount,
		ServiceAccount: &workv1.ManifestWorkSubjectServiceAccount{Namespace: namespace, Name: name},
	}}
}

// executeAs is the right to use an executor.
func executeAs(namespace, name string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{workv1.GroupName}, Resources: []string{"manifestworks"},
		Verbs: []string{"execute-as"}, ResourceNames: []string{"system:serviceaccount:" + namespace + ":" + name}}
}

func TestAdmission_ChecksRightToUseAnExecutor(t *testing.T) {
	t.Parallel()
	const user = "admission-jane"
	works := author(t, user)
	text := func(name string) string {
		return "user " + user + " cannot manipulate the Manifestwork with executor apps/" + name + " in namespace " + cluster
	}
	w := harness.NewWork(t, cluster, "admission-executor", harness.ConfigMapYAML("default", "admission-executor", "x"))
	w.Spec.Executor = executor("apps", "first")
	harness.Eventually(t, func(ctx context.Context) error {
		_, err := works.Create(ctx, w, metav1.CreateOptions{})
		return isDenied(err, text("first"))
	})

	allow(t, user, executeAs("apps", "first"))
	harness.Eventually(t, func(ctx context.Context) error {
		_, err := works.Create(ctx, w, metav1.CreateOptions{})
		return err
	})
	t.Cleanup(func() { removeWork(t, w.Name) })
	change := func(change func(*workv1.ManifestWork)) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			live, err := works.Get(ctx, w.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			change(live)
			_, err = works.Update(ctx, live, metav1.UpdateOptions{})
			return err
		}
	}
	another := change(func(w *workv1.ManifestWork) { w.Spec.Executor = executor("apps", "second") })
	harness.Eventually(t, func(ctx context.Context) error { return isDenied(another(ctx), text("second")) })

	// A user without the right to use the executor may still change the other fields.
	const other = "admission-joe"
	works = author(t, other)
	harness.Eventually(t, change(func(w *workv1.ManifestWork) { w.Annotations = map[string]string{"a": "b"} }))

	allow(t, other, executeAs("apps", "second"))
	harness.Eventually(t, another)
}

func TestAdmission_ChecksRightToOmitTheExecutor(t *testing.T) {
	t.Parallel()
	const user = "admission-jim"
	works := author(t, user)
	w := harness.NewWork(t, cluster, "admission-no-executor", harness.ConfigMapYAML("default", "admission-no-executor", "x"))
	harness.Eventually(t, func(ctx context.Context) error {
		_, err := works.Create(ctx, w, metav1.CreateOptions{})
		return isDenied(err, "user "+user+" cannot manipulate the Manifestwork with executor /klusterlet-work-sa in namespace "+cluster)
	})
	bind(t, user, rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "hawser-work-executor-admin"})
	harness.Eventually(t, func(ctx context.Context) error {
		_, err := works.Create(ctx, w, metav1.CreateOptions{})
		return err
	})
	removeWork(t, w.Name)
}

func removeWork(t *testing.T, name string) {
	t.Helper()
	if err := shared.HubAPI.Work.WorkV1().ManifestWorks(cluster).Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// hubSourceIP is the address that stands for the pod of hub-source.
func hubSourceIP(t *testing.T) string {
	t.Helper()
	host, _, err := net.SplitHostPort(shared.Program(fleet.HubSource).Admin)
	if err != nil {
		t.Fatal(err)
	}
	return host
}

// trusting returns the TLS configuration with which a kube-apiserver verifies the webhook's certificate, for any
// dialed address.
func trusting(t *testing.T) *tls.Config {
	t.Helper()
	ca, err := os.ReadFile(shared.PKI().CACert())
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		t.Fatal("no certificate of the authority")
	}
	return &tls.Config{RootCAs: pool, ServerName: hubSourceIP(t), MinVersion: tls.VersionTLS12}
}

// TestAdmission_CertificateIsRenewedWhileServing: the webhook presents a renewed certificate without a restart.
// It keeps the old one while the files do not match.
func TestAdmission_CertificateIsRenewedWhileServing(t *testing.T) {
	t.Parallel()
	hubSource := shared.Program(fleet.HubSource)
	pid := hubSource.PID()
	addr := net.JoinHostPort(hubSourceIP(t), "9443")
	shown := func(ctx context.Context) (string, error) {
		d := tls.Dialer{Config: trusting(t)}
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return "", err
		}
		defer conn.Close()
		return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.String(), nil
	}
	before, err := shown(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	authority, err := shared.PKI().Authority()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue(pki.Request{Role: pki.Webhook, Name: "renewed", Hosts: []string{hubSourceIP(t)}, Valid: pki.Starting(time.Now(), time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	put := func(file string, content []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(shared.Volume(fleet.HubSource, "webhook-tls"), file), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("tls.key", pair.KeyPEM) // this key does not fit the old certificate
	harness.Consistently(t, func(ctx context.Context) error {
		now, err := shown(ctx)
		if err == nil && now != before {
			err = errors.New("another certificate is shown already")
		}
		return err
	})
	put("tls.crt", pair.CertPEM)
	harness.Eventually(t, func(ctx context.Context) error {
		now, err := shown(ctx)
		if err == nil && now == before {
			err = errors.New("the old certificate is still shown")
		}
		return err
	})
	_, err = shared.HubAPI.Work.WorkV1().ManifestWorks(cluster).Create(t.Context(), harness.NewWork(t, cluster, "admission-renewed"), metav1.CreateOptions{})
	refused(t, err, "manifests should not be empty")
	if now := hubSource.PID(); now != pid {
		t.Errorf("hub-source was started again: process %d, was %d", now, pid)
	}
}

// TestAdmission_StandbyReplicaAnswers: a replica that waits for the Lease answers like the leader.
func TestAdmission_StandbyReplicaAnswers(t *testing.T) {
	t.Parallel()
	parts := strings.Split(hubSourceIP(t), ".")
	parts[3] = "99"
	ip := strings.Join(parts, ".")
	args := append(shared.Program(fleet.HubSource).Args(),
		"--admin-listen="+ip+":8081", "--webhook-listen="+ip+":9443", "--leader-elect-identity=standby")
	admin := func(ctx context.Context, path string) (string, error) {
		return fetch(ctx, http.DefaultClient, http.MethodGet, "http://"+ip+":8081"+path, nil)
	}
	standby, err := childproc.Start(t.Context(), childproc.Spec{
		Name: "standby", Path: filepath.Join(shared.Root, "bin", "hawser-hub-source"), Args: args,
		Env:     []string{"KUBECONFIG=" + filepath.Join(filepath.Dir(shared.LogDir()), fleet.HubSource, "kubeconfig")},
		LogFile: filepath.Join(shared.LogDir(), "hub-source-standby.log"),
		Ready: func(ctx context.Context) error {
			_, err := admin(ctx, "/readyz")
			return err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := standby.Stop(); err != nil {
			t.Error(err)
		}
	})
	metrics, err := admin(t.Context(), "/metrics")
	if err != nil || !strings.Contains(metrics, "\nhawser_hubsource_leader 0\n") {
		t.Fatalf("hub-source leads, or has no such metric: %v", err)
	}
	review := admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "standby", Operation: admissionv1.Create, Namespace: cluster,
			Resource: metav1.GroupVersionResource{Group: workv1.GroupName, Version: "v1", Resource: "manifestworks"},
		},
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: trusting(t)}}
	t.Cleanup(client.CloseIdleConnections)
	request := func(w *workv1.ManifestWork) *admissionv1.AdmissionResponse {
		t.Helper()
		object, err := json.Marshal(w)
		if err != nil {
			t.Fatal(err)
		}
		review.Request.Object = runtime.RawExtension{Raw: object}
		body, err := json.Marshal(review)
		if err != nil {
			t.Fatal(err)
		}
		text, err := fetch(t.Context(), client, http.MethodPost, "https://"+ip+":9443/validate-work-open-cluster-management-io-v1-manifestwork", body)
		if err != nil {
			t.Fatal(err)
		}
		var got admissionv1.AdmissionReview
		if err := json.Unmarshal([]byte(text), &got); err != nil || got.Response == nil {
			t.Fatalf("answered %s: %v", text, err)
		}
		return got.Response
	}
	if r := request(harness.NewWork(t, cluster, "standby")); r.Allowed || r.Result.Code != http.StatusBadRequest || r.Result.Message != "manifests should not be empty" {
		t.Errorf("a work without manifests: %+v", r)
	}
	// The standby replica asks the hub about the executor, too.
	review.Request.UserInfo.Username = "admission-norights"
	w := harness.NewWork(t, cluster, "standby", harness.ConfigMapYAML("default", "standby", "x"))
	want := "user admission-norights cannot manipulate the Manifestwork with executor /klusterlet-work-sa in namespace " + cluster
	if r := request(w); r.Allowed || r.Result.Message != want {
		t.Errorf("a work of a user without rights: %+v, want %q", r, want)
	}
	review.Request.UserInfo.Groups = []string{"system:masters"}
	if r := request(w); !r.Allowed {
		t.Errorf("a good work: %+v", r)
	}
}

// fetch sends a request and returns the body. A status other than 200 is an error.
func fetch(ctx context.Context, client *http.Client, method, url string, body []byte) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s %s", url, resp.Status, text)
	}
	return string(text), err
}

// TestAdmission_ApplyingAgainKeepsTheCA: deploy/ has no CA for the webhook. The CA is patched in once, and
// stays when the manifests are applied again.
func TestAdmission_ApplyingAgainKeepsTheCA(t *testing.T) {
	t.Parallel()
	manifests, err := os.ReadFile(filepath.Join(shared.Root, "deploy", "hub-source", "webhook.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, config, _ := strings.Cut(string(manifests), "\n---\n")
	const name = "admission-again" // a second configuration, for an API that does not exist
	config = strings.Replace(config, "  name: hawser-hub-source\n", "  name: "+name+"\n", 1)
	config = strings.Replace(config, "apiGroups: [work.open-cluster-management.io]", "apiGroups: [example.com]", 1)
	file := filepath.Join(t.TempDir(), "webhook.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	apply := func() { kubectl(t, "apply", "--server-side", "-f", file) }
	apply()
	t.Cleanup(func() { kubectl(t, "delete", "validatingwebhookconfiguration", name) })
	ca, err := os.ReadFile(shared.PKI().CACert())
	if err != nil {
		t.Fatal(err)
	}
	kubectl(t, "patch", "validatingwebhookconfiguration", name, "--type=json", "-p",
		fmt.Sprintf(`[{"op":"add","path":"/webhooks/0/clientConfig/caBundle","value":%q}]`, base64.StdEncoding.EncodeToString(ca)))
	apply()
	got, err := shared.HubAPI.Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || len(got.Webhooks) != 1 || !bytes.Equal(got.Webhooks[0].ClientConfig.CABundle, ca) {
		t.Errorf("after the second apply: %+v, %v", got, err)
	}
}

// TestAdmission_SlowBodiesStallNoWrite: a client that reaches the webhook's port may send endless bodies. The
// hub still accepts works.
func TestAdmission_SlowBodiesStallNoWrite(t *testing.T) {
	addr := net.JoinHostPort(hubSourceIP(t), "9443")
	d := tls.Dialer{Config: trusting(t), NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.9")}}}
	api := shared.HubAPI.Work.WorkV1().ManifestWorks(cluster)
	for i := range 300 {
		c, err := d.DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "POST /validate-work-open-cluster-management-io-v1-manifestwork?timeout=10s HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"); err != nil {
			t.Fatal(err)
		}
		if i%60 != 59 {
			continue
		}
		began := time.Now()
		w := harness.NewWork(t, cluster, fmt.Sprintf("admission-slow-%d", i), harness.ConfigMapYAML("default", fmt.Sprintf("admission-slow-%d", i), "x"))
		if _, err := api.Create(t.Context(), w, metav1.CreateOptions{}); err != nil {
			t.Fatalf("beside %d slow bodies: %v", i+1, err)
		}
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("beside %d slow bodies a work takes %s", i+1, took)
		}
		shared.DeleteWork(t, cluster, w.Name)
	}
}
