package cli_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/drift"
	"github.com/hawser-io/hawser/pkg/agent/hubidentity"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

// TestClusterScripts: each script in testdata/cluster is a terminal session with its own clusters. The contexts
// hub and cluster1 are empty clusters. The context fleet is a hub with pending clusters, spoke a cluster with a
// klusterlet. The file owner is a cluster with agents of two hubs.
func TestClusterScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/cluster", RequireExplicitExec: true, RequireUniqueNames: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"cmpmasked": compareMasked},
		Setup: func(e *testscript.Env) error {
			urls := map[string]string{}
			for name, f := range map[string]*clustertest.Fake{"hub": clustertest.New(), "cluster1": clustertest.New(), "fleet": requested(t), "spoke": spoke(), "moved": inUse(t)} {
				s := httptest.NewServer(api{f})
				e.Defer(s.Close)
				urls[name] = s.URL
			}
			e.Setenv("KUBECONFIG", filepath.Join(e.WorkDir, "config"))
			return errors.Join(writeKubeconfig(filepath.Join(e.WorkDir, "config"), "hub", urls), writeKubeconfig(filepath.Join(e.WorkDir, "owner"), "moved", urls))
		},
	})
}

// writeKubeconfig writes a kubeconfig with a context of the same name for each cluster.
func writeKubeconfig(file, current string, urls map[string]string) error {
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: %s\n", current)
	var clusters, contexts []string
	for name, url := range urls {
		clusters = append(clusters, fmt.Sprintf("{name: %s, cluster: {server: %q}}", name, url))
		contexts = append(contexts, fmt.Sprintf("{name: %s, context: {cluster: %s}}", name, name))
	}
	text += "clusters: [" + strings.Join(clusters, ", ") + "]\ncontexts: [" + strings.Join(contexts, ", ") + "]\n"
	return os.WriteFile(file, []byte(text), 0o600)
}

// inUse is a cluster with the works of two hubs: north has two, and south one.
func inUse(t *testing.T) *clustertest.Fake {
	t.Helper()
	f := clustertest.New()
	f.Put(clustertest.Object("v1", "Namespace", "", "hawser"))
	hubs := hubidentity.Registry{Objects: f, Records: hubidentity.RecordsOf(f.Metadata), Namespace: "hawser", Now: func() time.Time { return at }}
	for identity, works := range map[string][]string{"north": {"web", "db"}, "south": {"job"}} {
		_, err := hubs.Admit(t.Context(), identity, hubidentity.BrokerRef{Cluster: "cluster1", Broker: identity + ".example:8090", StoreID: "store-of-" + identity}, nil)
		s := appliedwork.Store{Objects: f, HubHash: appliedwork.HubHash(identity), AgentID: appliedwork.HubHash(identity)}
		for _, name := range works {
			_, failed := s.Create(t.Context(), name, nil, appliedwork.Origin{Source: identity, WorkID: "id-" + name, Version: 1, Tag: "t"})
			err = errors.Join(err, failed)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// api is a cluster as a kube-apiserver shows it. Its controllers carry out each change at once.
type api struct{ *clustertest.Fake }

// kinds are the kinds that discovery lists, if the cluster has them.
var kinds = []string{
	"AppliedManifestWork", "ManifestWork", "CustomResourceDefinition", "Namespace", "ServiceAccount", "ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding", "ConfigMap",
	"Secret", "Service", "Deployment", "PersistentVolumeClaim", "PodDisruptionBudget", "NetworkPolicy", "ValidatingWebhookConfiguration",
	"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "Lease",
	"ManagedCluster", "CertificateSigningRequest", "Klusterlet",
}

// ServeHTTP answers one request.
func (a api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ref, subresource, isVersion := refOf(r.URL.Path)
	body, err := io.ReadAll(r.Body)
	var what any
	switch {
	case err != nil:
	case ref.Resource == "selfsubjectreviews":
		what = map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": map[string]any{"creationTimestamp": at.UTC().Format(time.RFC3339)}}
	case isVersion:
		what = a.resources(r, ref.GroupVersion())
	default:
		what, err = a.do(r, ref, subresource, body)
	}
	var unknown *kubeclient.NotServedError
	if errors.As(err, &unknown) {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		var status *apierrors.StatusError
		if !errors.As(err, &status) {
			status = apierrors.NewInternalError(err)
		}
		w.WriteHeader(int(status.ErrStatus.Code))
		status.ErrStatus.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		what = status.ErrStatus
	}
	_ = json.NewEncoder(w).Encode(what) // on an error the client fails
}

// refOf reads a path of the API; isVersion: the request lists the kinds of a version.
func refOf(path string) (ref kubeclient.Ref, subresource string, isVersion bool) {
	words := strings.Split(strings.Trim(path, "/"), "/")
	if words[0] == "api" { // the group without a name
		words = slices.Insert(words, 1, "")
	}
	ref.Group, ref.Version = words[1], words[2]
	words = words[3:]
	if len(words) > 2 && words[0] == "namespaces" {
		ref.Namespace, words = words[1], words[2:]
	}
	if len(words) == 0 {
		return ref, "", true
	}
	ref.Resource = words[0]
	if len(words) > 1 {
		ref.Name = words[1]
	}
	if len(words) > 2 {
		subresource = words[2]
	}
	return ref, subresource, false
}

// resources lists the kinds of a version.
func (a api) resources(r *http.Request, gv schema.GroupVersion) metav1.APIResourceList {
	l := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: gv.String()}
	for _, kind := range kinds {
		if is, err := a.Resolve(r.Context(), gv.WithKind(kind)); err == nil {
			l.APIResources = append(l.APIResources, metav1.APIResource{Name: is.Resource, Kind: kind, Namespaced: is.Namespaced})
		}
	}
	return l
}

// do carries out a request about an object, or about a list of objects.
func (a api) do(r *http.Request, ref kubeclient.Ref, subresource string, body []byte) (any, error) {
	o := &unstructured.Unstructured{}
	if r.Method == http.MethodPost || r.Method == http.MethodPut || strings.Contains(r.Header.Get("Content-Type"), "apply-patch") {
		if err := o.UnmarshalJSON(body); err != nil {
			return nil, err
		}
	}
	switch {
	case r.Method == http.MethodGet && ref.Name == "" && !strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadataList"):
		return a.list(r, ref)
	case r.Method == http.MethodGet && ref.Name == "":
		l, err := a.Metadata(drift.Scope{GroupVersionResource: ref.GroupVersionResource, Namespace: ref.Namespace}).List(r.Context(), metav1.ListOptions{})
		if l != nil {
			l.TypeMeta = metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"}
		}
		return l, err
	case subresource == "token":
		return a.token(r, ref, o)
	case subresource == "approval":
		return a.Patch(r.Context(), ref, body, "status")
	case r.Method == http.MethodGet:
		return a.Get(r.Context(), ref)
	case r.Method == http.MethodPost:
		return a.Create(r.Context(), ref.GroupVersionResource, o)
	case r.Method == http.MethodPut:
		return a.Update(r.Context(), ref.GroupVersionResource, o)
	case r.Method == http.MethodDelete:
		return a.remove(r, ref, body)
	case o.Object != nil:
		return a.apply(r, ref, o)
	}
	return a.Patch(r.Context(), ref, body, subresource)
}

// list returns whole objects.
func (a api) list(r *http.Request, ref kubeclient.Ref) (any, error) {
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		return nil, err
	}
	l := map[string]any{"apiVersion": ref.GroupVersion().String(), "kind": "List", "metadata": map[string]any{}}
	items := []any{}
	for _, at := range a.Refs() {
		if o := a.Look(at); at.GroupVersionResource == ref.GroupVersionResource && (ref.Namespace == "" || at.Namespace == ref.Namespace) && selector.Matches(labels.Set(o.GetLabels())) {
			items = append(items, o.Object)
		}
	}
	l["items"] = items
	return l, nil
}

// token answers a token request for an existing service account.
func (a api) token(r *http.Request, ref kubeclient.Ref, o *unstructured.Unstructured) (any, error) {
	if _, err := a.Get(r.Context(), ref); err != nil {
		return nil, err
	}
	return o, unstructured.SetNestedField(o.Object, "token-of-"+ref.Name, "status", "token")
}

// apply applies an object: a Deployment runs at once, and a definition is served.
func (a api) apply(r *http.Request, ref kubeclient.Ref, o *unstructured.Unstructured) (any, error) {
	is, err := a.ServerSideApply(r.Context(), ref.GroupVersionResource, o, kubeclient.FieldManager{Name: r.URL.Query().Get("fieldManager"), Force: true})
	if err != nil {
		return nil, err
	}
	switch o.GetKind() {
	case "Deployment":
		n, _, err := unstructured.NestedInt64(is.Object, "spec", "replicas")
		if err != nil {
			return nil, err
		}
		return a.Patch(r.Context(), ref, fmt.Appendf(nil, `{"status": {"observedGeneration": %d, "replicas": %d, "updatedReplicas": %[2]d, "availableReplicas": %[2]d}}`, is.GetGeneration(), n), "status")
	case "CustomResourceDefinition":
		return a.Patch(r.Context(), ref, []byte(`{"status": {"conditions": [{"type": "Established", "status": "True"}]}}`), "status")
	}
	return is, nil
}

// remove deletes an object.
func (a api) remove(r *http.Request, ref kubeclient.Ref, body []byte) (any, error) {
	var how metav1.DeleteOptions
	if err := json.Unmarshal(body, &how); err != nil {
		return nil, err
	}
	var uid types.UID
	if how.Preconditions != nil && how.Preconditions.UID != nil {
		uid = *how.Preconditions.UID
	}
	return metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess}, a.Delete(r.Context(), ref, uid)
}
