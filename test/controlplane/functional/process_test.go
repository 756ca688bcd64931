package functional

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestControlPlane_RestartKeepsObjectsPortAndCredentials: the objects, port and credentials of a client stay
// valid for the same cluster, after a crash and after a stop.
func TestControlPlane_RestartKeepsObjectsPortAndCredentials(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), strings.Repeat("long-", 20), "hub") // longer than the path of a Unix socket may be
	p, c := start(t, "--dir", dir, "--name=hub")
	ctx := t.Context()
	want, err := c.typed.CoreV1().ConfigMaps("default").Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	withToken := tokenClient(t, c, "default", "default")
	steps := []struct {
		how  string
		stop func()
	}{
		{"SIGKILL", p.kill},
		{"SIGTERM", func() { signal(t, p, syscall.SIGTERM); p.end(t) }},
	}
	for _, step := range steps {
		step.stop()
		p, _ = start(t, "--dir", dir, "--name=hub")
		got, err := c.typed.CoreV1().ConfigMaps("default").Get(ctx, "kept", metav1.GetOptions{})
		if err != nil {
			t.Fatalf("after %s, with the kubeconfig from before: %v", step.how, err)
		}
		if got.UID != want.UID {
			t.Errorf("after %s the object is another one", step.how)
		}
		if _, err := withToken.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{}); err != nil {
			t.Errorf("after %s, with a token from before: %v", step.how, err)
		}
	}
}

func TestControlPlane_StopsWithStdin(t *testing.T) {
	t.Parallel()
	p, _ := start(t, "--dir", t.TempDir(), "--name=x", "--stdin")
	if err := p.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	p.end(t)
}

func TestControlPlane_PassesFlagsToTheAPIServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	if err := os.WriteFile(policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, "--dir", filepath.Join(dir, "hub"), "--", "--audit-policy-file="+policy, "--audit-log-path="+log)
	data, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), `"requestURI":"/readyz"`) {
		t.Error("the audit log lacks the first request")
	}
}

func TestControlPlane_RefusesADirectoryInUse(t *testing.T) {
	t.Parallel()
	dir := filepath.Dir(shared.kubeconfig)
	output := refused(t, 1, "--dir", dir)
	for _, want := range []string{dir + " is in use by process ", filepath.Join(dir, "lock"), "--dir"} {
		if !strings.Contains(output, want) {
			t.Errorf("the output is %q, want %q in it", output, want)
		}
	}
}

func TestControlPlane_RejectsUsedPort(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	port := l.Addr().(*net.TCPAddr).Port
	output := refused(t, 1, "--dir", t.TempDir(), "--name=x", fmt.Sprintf("--port=%d", port))
	if want := fmt.Sprintf("port %d is taken by another process: stop it, choose another --port", port); !strings.Contains(output, want) {
		t.Errorf("the output is %q, want %q in it", output, want)
	}
}

func TestControlPlane_RefusesBadFlags(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		code int
		args []string
		want string
	}{
		"none":                      {2, nil, "--dir is required"},
		"unknown":                   {2, []string{"--dir=x", "--ports=1"}, "unknown flag: --ports"},
		"unknown to the API server": {1, []string{"--dir", t.TempDir(), "--name=x", "--", "--no-such"}, "check the flags after --: unknown flag: --no-such"},
		"bad for the API server":    {1, []string{"--dir", t.TempDir(), "--name=x", "--", "--audit-policy-file=/does/not/exist"}, "/does/not/exist"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if output := refused(t, tc.code, tc.args...); !strings.Contains(output, tc.want) {
				t.Errorf("the output is %q, want %q in it", output, tc.want)
			}
		})
	}
}

// tokenClient returns a client with only the token of a service account.
func tokenClient(t *testing.T, c *cluster, namespace, name string) *kubernetes.Clientset {
	t.Helper()
	req, err := c.typed.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cfg := rest.AnonymousClientConfig(c.config)
	cfg.BearerToken = req.Status.Token
	cfg.QPS = -1
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return client
}
