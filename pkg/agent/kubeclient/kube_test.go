package kubeclient_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// recorded is one request that reached the server.
type recorded struct{ method, url, agent, contentType, body, as string }

// server answers paths with a status and a body; the answer for "" is for all other paths.
func server(t *testing.T, answers map[string]string) (*kubeclient.Kube, *[]recorded) {
	t.Helper()
	var seen []recorded
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		seen = append(seen, recorded{r.Method, r.URL.String(), r.UserAgent(), r.Header.Get("Content-Type"), string(b), r.Header.Get("Impersonate-User")})
		a, ok := answers[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if strings.Contains(a, `"Failure"`) {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, a)
	}))
	t.Cleanup(srv.Close)
	k, err := kubeclient.NewKube(kubeclient.KubeConfig{REST: &rest.Config{Host: srv.URL}, QPS: 1000, Burst: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return k, &seen
}

var podsV1 = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

func TestKube_TwoKindsOf404(t *testing.T) {
	k, _ := server(t, map[string]string{
		"/api/v1/namespaces/default/pods/none": `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"details":{"name":"none","kind":"pods"}}`,
	})
	_, err := k.Get(t.Context(), kubeclient.Ref{GroupVersionResource: podsV1, Namespace: "default", Name: "none"})
	var e *kubeclient.NotServedError
	if !apierrors.IsNotFound(err) || errors.As(err, &e) {
		t.Fatalf("got %v, want an object that is not found", err)
	}
	gvr := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "ropes"}
	_, err = k.Get(t.Context(), kubeclient.Ref{GroupVersionResource: gvr, Namespace: "default", Name: "none"})
	if apierrors.IsNotFound(err) || !errors.As(err, &e) || err.Error() != "the server does not serve ropes.example.com in version v1" {
		t.Fatalf("got %v, want a resource that is not served", err)
	}
}

// TestKube_ReportsUnreachableServer: a work reports it with the next step, and without the URL of the request.
func TestKube_ReportsUnreachableServer(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	srv.Close()
	k, err := kubeclient.NewKube(kubeclient.KubeConfig{REST: &rest.Config{Host: srv.URL}, QPS: 1000, Burst: 1000})
	if err != nil {
		t.Fatal(err)
	}
	_, get := k.Get(t.Context(), kubeclient.Ref{GroupVersionResource: podsV1, Namespace: "default", Name: "none"})
	_, resolve := k.Resolve(t.Context(), podsV1.GroupVersion().WithKind("Pod"))
	for name, err := range map[string]error{"get": get, "resolve": resolve} {
		const begins, ends = "the kube-apiserver of the cluster cannot be reached: dial tcp 127.0.0.1:", "connection refused; check that it runs, and that its agent reaches it"
		if !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), begins) || !strings.HasSuffix(err.Error(), ends) || strings.Contains(err.Error(), "/api") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := k.Get(ctx, kubeclient.Ref{GroupVersionResource: podsV1, Namespace: "default", Name: "none"}); !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "reached") {
		t.Errorf("given up: got %v", err)
	}
}

// Some servers do not name the missing object; their list of resources decides.
func TestKube_NotFoundWithoutName(t *testing.T) {
	unnamed := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":"the server could not find the requested resource","details":{}}`
	k, _ := server(t, map[string]string{
		"/apis/example.com/v1":              `{"kind":"APIResourceList","groupVersion":"example.com/v1","resources":[{"name":"ropes","kind":"Rope"}]}`,
		"/apis/example.com/v1/ropes/none":   unnamed,
		"/apis/example.com/v1/splices/none": unnamed,
	})
	gv := schema.GroupVersion{Group: "example.com", Version: "v1"}
	if _, err := k.Get(t.Context(), kubeclient.Ref{GroupVersionResource: gv.WithResource("ropes"), Name: "none"}); !apierrors.IsNotFound(err) {
		t.Errorf("got %v, want an object that is not found", err)
	}
	var e *kubeclient.NotServedError
	if _, err := k.Get(t.Context(), kubeclient.Ref{GroupVersionResource: gv.WithResource("splices"), Name: "none"}); !errors.As(err, &e) {
		t.Errorf("got %v, want a resource that is not served", err)
	}
}

func TestKube_RequestsAreConditionalAndNamed(t *testing.T) {
	ok := `{"kind":"Status","apiVersion":"v1","status":"Success"}`
	k, seen := server(t, map[string]string{"/api/v1/namespaces/default/pods/p": ok, "/api/v1/namespaces/default/pods/p/status": ok})
	ref := kubeclient.Ref{GroupVersionResource: podsV1, Namespace: "default", Name: "p"}
	if err := k.Delete(t.Context(), ref, "u-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Patch(t.Context(), ref, []byte(`{"status":{}}`), "status"); err != nil {
		t.Fatal(err)
	}
	del, patch := (*seen)[0], (*seen)[1]
	if del.method != "DELETE" || !strings.Contains(del.body, `"uid":"u-1"`) || !strings.Contains(del.body, `"propagationPolicy":"Background"`) {
		t.Errorf("got %+v, want a background deletion of this uid only", del)
	}
	if patch.contentType != "application/merge-patch+json" || !strings.HasSuffix(patch.url, "/p/status") {
		t.Errorf("got %+v, want a merge patch of the status", patch)
	}
	if del.agent != "work-agent" {
		t.Errorf("user agent %q", del.agent)
	}
}

func TestKube_DryRunsAsAnotherUser(t *testing.T) {
	const path = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles"
	k, seen := server(t, map[string]string{path: `{"kind":"Role","apiVersion":"rbac.authorization.k8s.io/v1"}`})
	roles := schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"}
	role := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": map[string]any{"namespace": "default", "name": "r"},
	}}
	for _, user := range []string{"system:serviceaccount:a:b", "system:serviceaccount:c:d"} {
		if _, err := k.As(user).Create(t.Context(), roles, role); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := k.Create(t.Context(), roles, role); err != nil {
		t.Fatal(err)
	}
	if _, err := k.As("").Create(t.Context(), roles, role); err == nil {
		t.Error("a dry run without a user must not be made with the rights of the agent")
	}
	var got []string
	for _, r := range *seen {
		got = append(got, r.method+" "+r.url+" as "+r.as)
	}
	want := []string{
		"POST " + path + "?dryRun=All as system:serviceaccount:a:b",
		"POST " + path + "?dryRun=All as system:serviceaccount:c:d",
		"POST " + path + " as ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestNewKube_ChecksLimits(t *testing.T) {
	for c, valid := range map[kubeclient.KubeConfig]bool{
		{}:                              true,
		{QPS: 5, Burst: 1, InFlight: 3}: true,
		{QPS: 5}:                        false,
		{QPS: -1, Burst: 1}:             false,
		{InFlight: -1}:                  false,
	} {
		c.REST = &rest.Config{Host: "http://127.0.0.1"}
		if _, err := kubeclient.NewKube(c); (err == nil) != valid {
			t.Errorf("qps %v, burst %d, in flight %d: %v", c.QPS, c.Burst, c.InFlight, err)
		}
	}
}
