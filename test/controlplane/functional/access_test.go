package functional

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNamespace_GetsDefaultServiceAccountAndRootCertificate(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	eventually(t, "root certificate", found(getConfigMap(ns, "kube-root-ca.crt")))
}

func TestRBAC_DeniesUntilARoleIsBound(t *testing.T) {
	t.Parallel()
	ns, ctx := namespace(t), t.Context()
	configMap(t, ns, "secretive")
	client := tokenClient(t, shared, ns, "default")
	read := func(ctx context.Context) error {
		_, err := client.CoreV1().ConfigMaps(ns).Get(ctx, "secretive", metav1.GetOptions{})
		return err
	}
	if err := read(ctx); !apierrors.IsForbidden(err) {
		t.Fatalf("before a role is bound: %v, want Forbidden", err)
	}
	rbac := shared.typed.RbacV1()
	if _, err := rbac.Roles(ns).Create(ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := rbac.RoleBindings(ns).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: ns, Name: "default"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "access", func(ctx context.Context) (bool, error) {
		err := read(ctx)
		if apierrors.IsForbidden(err) {
			return false, nil
		}
		return err == nil, err
	})
}

func TestServiceAccount_TokenProvesItsName(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	client := tokenClient(t, shared, ns, "default")
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := review.Status.UserInfo.Username, "system:serviceaccount:"+ns+":default"; got != want {
		t.Errorf("the token is of %s, want %s", got, want)
	}
}

func TestKubectl_ReportsTheVersionsAndWorks(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	kubectl := func(args ...string) string {
		t.Helper()
		args = append([]string{"--kubeconfig", shared.kubeconfig, "--namespace", ns}, args...)
		out, err := exec.CommandContext(t.Context(), filepath.Join(binDir, "kubectl"), args...).CombinedOutput()
		if err != nil {
			t.Fatalf("kubectl %q: %v\n%s", args, err, out)
		}
		return string(out)
	}
	versions := kubectl("version")
	for _, want := range []string{"Client Version: v1.", "Server Version: v1."} {
		if !strings.Contains(versions, want) {
			t.Errorf("kubectl version prints %q, want %q in it", versions, want)
		}
	}
	if token := kubectl("create", "token", "default"); strings.Count(token, ".") != 2 {
		t.Errorf("kubectl create token prints %q", token)
	}
}
