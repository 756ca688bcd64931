// Package fakekube is a kube-apiserver for tests of clients that check a cluster. It reports running programs,
// served resources and rights. Its only object is the namespace kube-system.
package fakekube

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes/scheme"
	workv1 "open-cluster-management.io/api/work/v1"
)

// Server is a server that runs until the test ends.
type Server struct {
	// URL is its URL.
	URL string

	t  testing.TB
	ca []byte
}

// Start starts a server with these resources of OCM's work API. The token is the user: "full" may do
// everything; "few" may not do what forbidden lists, as "patch manifestworks". Other tokens are unknown.
func Start(t testing.TB, served []string, forbidden ...string) *Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /version", answer(func(string, *http.Request) any { return version.Info{Major: "1", Minor: "35", GitVersion: "v1.35.0"} }))
	mux.HandleFunc("GET /api/v1/namespaces/kube-system", answer(func(string, *http.Request) any {
		return corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "uid-of-cluster"}}
	}))
	if len(served) > 0 {
		mux.HandleFunc("GET /apis/"+workv1.GroupName+"/v1", answer(func(string, *http.Request) any {
			l := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: workv1.GroupName + "/v1"}
			for _, r := range served {
				l.APIResources = append(l.APIResources, metav1.APIResource{Name: r})
			}
			return l
		}))
	}
	mux.HandleFunc("POST /apis/authentication.k8s.io/v1/selfsubjectreviews", answer(func(client string, _ *http.Request) any {
		return authenticationv1.SelfSubjectReview{
			TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "SelfSubjectReview"},
			Status:   authenticationv1.SelfSubjectReviewStatus{UserInfo: authenticationv1.UserInfo{Username: client}},
		}
	}))
	mux.HandleFunc("POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews", answer(func(name string, r *http.Request) any {
		review := authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{}}}
		body, err := io.ReadAll(r.Body)
		if err == nil {
			_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, &review)
		}
		if err != nil {
			t.Error(err)
		}
		a := review.Spec.ResourceAttributes
		requested := strings.TrimSuffix(a.Verb+" "+a.Resource+"/"+a.Subresource, "/")
		review.TypeMeta = metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"}
		review.Status.Allowed = name == "full" || !slices.Contains(forbidden, requested)
		return review
	}))
	s := httptest.NewUnstartedServer(mux)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // from clients that do not trust it
	s.StartTLS()
	t.Cleanup(s.Close)
	return &Server{URL: s.URL, t: t, ca: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})}
}

// answer answers known users with JSON.
func answer(f func(name string, r *http.Request) any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		client, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if client == "" {
			client = "system:anonymous"
		}
		var what any = metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonUnauthorized, Code: http.StatusUnauthorized, Message: "Unauthorized",
		}
		if slices.Contains([]string{"full", "few", "system:anonymous"}, client) {
			what = f(client, r)
		} else {
			w.WriteHeader(http.StatusUnauthorized)
		}
		_ = json.NewEncoder(w).Encode(what) // the client detects it
	}
}

// Kubeconfig writes a kubeconfig with this token, "" for none, into a file of dir, and returns its path.
func (s *Server) Kubeconfig(dir, name, token string) string {
	return s.write(dir, name, token, s.URL, s.ca)
}

// KubeconfigTo is Kubeconfig with another address of the server, or another CA.
func (s *Server) KubeconfigTo(dir, name, url string, ca []byte) string {
	if ca == nil {
		ca = s.ca
	}
	return s.write(dir, name, "full", url, ca)
}

func (s *Server) write(dir, name, token, url string, ca []byte) string {
	s.t.Helper()
	path := filepath.Join(dir, name)
	user := ""
	if token != "" {
		user = "token: " + token
	}
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {%s}}]\nclusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]\n",
		user, url, base64.StdEncoding.EncodeToString(ca))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}
