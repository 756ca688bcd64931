package harness

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/local/fleet"
	"github.com/hawser-io/hawser/internal/pki"
)

// JoinAs creates what an additional agent with that name needs: a namespace on the hub and a certificate. For
// the hub it is an additional cluster.
func (f *Fleet) JoinAs(t *testing.T, name string) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := f.HubAPI.Kube.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	if _, err := f.PKI().Issue(pki.Request{Role: pki.Agent, Name: name, Valid: pki.Starting(time.Now(), 24*time.Hour)}, true); err != nil {
		t.Fatal(err)
	}
}

// AgentSpec returns the specification of an additional agent on a managed cluster, beside the agent of the
// fleet and with the same rights. It is the agent of name, see JoinAs. It has a state directory of its own
// name. more follows the arguments of the fleet's agent.
func (f *Fleet) AgentSpec(t *testing.T, cluster, name string, more ...string) childproc.Spec {
	t.Helper()
	dir := filepath.Join(filepath.Dir(f.LogDir()), fleet.AgentOf(name))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	driver := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(driver, f.ConnectionFile(pki.Agent, name), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{}, f.Program(fleet.AgentOf(cluster)).Args()...)
	args = append(args, "--spoke-cluster-name="+name, "--workload-source-config="+driver, "--state-dir="+filepath.Join(dir, "state"), "--admin-listen=")
	return childproc.Spec{
		Name: name, Path: filepath.Join(f.Root, "bin", "hawser-agent"), Args: append(args, more...),
		LogFile: filepath.Join(f.LogDir(), fleet.AgentOf(name)+".log"),
	}
}

// RunAgent runs the agent of AgentSpec until stop, or the end of the test.
func (f *Fleet) RunAgent(t *testing.T, cluster, name string, more ...string) (stop func()) {
	t.Helper()
	return f.Run(t, f.AgentSpec(t, cluster, name, more...))
}

// Run runs a program until stop, or the end of the test.
func (f *Fleet) Run(t *testing.T, s childproc.Spec) (stop func()) {
	t.Helper()
	p, err := childproc.Start(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		if err := p.Stop(); err != nil {
			t.Errorf("%s: %v: %s", s.Name, err, strings.TrimSpace(p.LogTail()))
		}
	}
	t.Cleanup(stop)
	return stop
}
