package fakehub_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/hawser-io/hawser/internal/testkit/fakehub"
)

type object = fakehub.Object

// TestServer_InformersFollow: informers see existing objects, changes, and the state of a restored hub.
func TestServer_InformersFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fakehub.New()
		c := kubernetes.NewForConfigOrDie(s.Config("admin"))
		f := informers.NewSharedInformerFactory(c, 0)
		lister := f.Coordination().V1().Leases().Lister()
		s.Put("leases", object{"metadata": object{"namespace": "c1", "name": "l"}, "spec": object{"holderIdentity": "before"}})
		ctx, stop := context.WithCancel(t.Context())
		f.Start(ctx.Done())
		f.WaitForCacheSync(ctx.Done())
		holder := func() string {
			<-time.After(time.Minute)
			l, err := lister.Leases("c1").Get("l")
			if err != nil {
				return err.Error()
			}
			return *l.Spec.HolderIdentity
		}
		if got := holder(); got != "before" {
			t.Errorf("listed: %s", got)
		}
		copied := s.Backup()
		s.Change("leases", "c1", "l", func(o object) { o["spec"] = object{"holderIdentity": "after"} })
		if got := holder(); got != "after" {
			t.Errorf("watched: %s", got)
		}
		s.Restore(copied)
		if got := holder(); got != "before" {
			t.Errorf("restored: %s", got)
		}
		stop()
		f.Shutdown()
	})
}

// TestServer_Writes checks conflicts, the separation of status and spec, and finalizers.
func TestServer_Writes(t *testing.T) {
	s, ctx := fakehub.New(), t.Context()
	c := kubernetes.NewForConfigOrDie(s.Config("admin")).CoreV1()
	n, err := c.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "c1", Finalizers: []string{"x/y"}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = c.Namespaces().Create(ctx, n.DeepCopy(), metav1.CreateOptions{}); err == nil {
		t.Error("created with a resource version")
	}
	m := n.DeepCopy()
	m.Labels, m.Status.Phase = map[string]string{"a": "b"}, "Odd"
	if m, err = c.Namespaces().Update(ctx, m, metav1.UpdateOptions{}); err != nil || m.Status.Phase != "" || m.Labels["a"] != "b" {
		t.Errorf("update: %v, %v", m, err)
	}
	if _, err = c.Namespaces().Update(ctx, n, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("stale update: %v", err)
	}
	for _, kind := range []types.PatchType{types.MergePatchType, types.StrategicMergePatchType} {
		if _, err = c.Namespaces().Patch(ctx, "c1", kind, []byte(`{"metadata":{"labels":{"k":"v"}}}`), metav1.PatchOptions{}); err != nil {
			t.Errorf("patch: %v", err)
		}
	}
	if _, err = c.ConfigMaps("none").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("in a namespace that is not there: %v", err)
	}
	if _, err = c.ConfigMaps("c1").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	if err = c.Namespaces().Delete(ctx, "c1", metav1.DeleteOptions{}); err != nil || s.Get("namespaces", "", "c1") == nil {
		t.Errorf("an object with a finalizer was removed: %v", err)
	}
	s.ForceDelete("namespaces", "", "c1")
	if s.Get("namespaces", "", "c1") != nil || s.Get("configmaps", "c1", "m") != nil {
		t.Error("it is still there")
	}
}

// TestServer_Rights: RBAC decides for users and service accounts, tokens are reviewed, and a certificate
// request contains its requester.
func TestServer_Rights(t *testing.T) {
	s, ctx := fakehub.New(), t.Context()
	s.Put("clusterroles", object{"metadata": object{"name": "r"}, "rules": []any{object{
		"verbs": []any{"create"}, "apiGroups": []any{"certificates.k8s.io"}, "resources": []any{"certificatesigningrequests"},
	}}})
	s.Put("clusterrolebindings", object{"metadata": object{"name": "b"}, "roleRef": object{"kind": "ClusterRole", "name": "r"},
		"subjects": []any{object{"kind": "ServiceAccount", "namespace": "n", "name": "joiner"}}})
	token := s.Token("n", "joiner", time.Hour, "hawser", fakehub.Issuer)
	server := httptest.NewServer(http.Handler(s))
	defer server.Close()
	joiner := kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL, BearerToken: token})
	csr, err := joiner.CertificatesV1().CertificateSigningRequests().Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "c1-"}, Spec: certificatesv1.CertificateSigningRequestSpec{Username: "system:admin"},
	}, metav1.CreateOptions{})
	if err != nil || csr.Spec.Username != "system:serviceaccount:n:joiner" {
		t.Errorf("%v, %v", csr, err)
	}
	if _, err := joiner.CoreV1().Secrets("").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("it reads secrets: %v", err)
	}
	admin := kubernetes.NewForConfigOrDie(s.Config("admin")).AuthenticationV1()
	for _, revoked := range []bool{false, true} {
		if revoked {
			s.Revoke("n", "joiner")
		}
		r, err := admin.TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{"hawser"}}}, metav1.CreateOptions{})
		if err != nil || r.Status.Authenticated == revoked {
			t.Errorf("revoked %v: %v, %v", revoked, r, err)
		}
	}
}
