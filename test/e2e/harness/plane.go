package harness

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	workclient "open-cluster-management.io/api/client/work/clientset/versioned"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/local/controlplane"
)

// ControlPlane is a kube-apiserver with the objects of deploy/ for one program, for tests that run the program in
// their own process. A failed step ends the test. A copy with another T is the same kube-apiserver for another
// test.
type ControlPlane struct {
	*testing.T
	// Admin, Kube and Works have the rights of an administrator.
	Admin *rest.Config
	Kube  kubernetes.Interface
	Works workclient.Interface
	// Limited has only the rights of the program's ServiceAccount.
	Limited *rest.Config

	config  controlplane.Config
	cluster *controlplane.Cluster
	kubectl string
}

// NewControlPlane starts a kube-apiserver with that number of nodes, with a definition of deploy/crds and the
// permissions of deploy/<base>. root is the root of the repository.
func NewControlPlane(t *testing.T, root, base, definition string, nodes int) *ControlPlane {
	t.Helper()
	programs, err := controlplane.Build(t.Context(), root, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	p := &ControlPlane{T: t, kubectl: filepath.Join(programs, "kubectl"),
		config: controlplane.Config{
			Binary: filepath.Join(programs, "controlplane"), Dir: t.TempDir(), Nodes: nodes,
			ExtraArgs: []string{"--enable-priority-and-fairness"}, // the default of Kubernetes
		}}
	p.Start()
	if p.Admin, err = p.cluster.RESTConfig(); err != nil {
		t.Fatal(err)
	}
	p.Kube, p.Works = kubernetes.NewForConfigOrDie(p.Admin), workclient.NewForConfigOrDie(p.Admin)
	crd := filepath.Join(root, "deploy", "crds", definition+".yaml")
	p.Kubectl("apply", "--server-side", "-f", crd)
	p.Kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", crd)
	p.Kubectl("apply", "-k", filepath.Join(root, "deploy", "namespace"))
	p.Kubectl("apply", "-n", "hawser", "-f", filepath.Join(root, "deploy", base, "rbac.yaml"))
	p.Limited = rest.AnonymousClientConfig(p.Admin)
	p.Limited.BearerToken = strings.TrimSpace(p.Kubectl("create", "token", "hawser-"+base, "-n", "hawser"))
	return p
}

// Start starts the kube-apiserver until the test ends. After Kill it starts with the same data.
func (p *ControlPlane) Start() {
	p.Helper()
	c, err := controlplane.Start(context.WithoutCancel(p.Context()), p.config)
	if err != nil {
		p.Fatal(err)
	}
	p.cluster = c
	p.Cleanup(func() {
		if err := c.Stop(); err != nil {
			p.Error(err)
		}
	})
}

// Kill ends the kube-apiserver at once.
func (p *ControlPlane) Kill() {
	p.Helper()
	if err := p.cluster.Kill(); err != nil {
		p.Fatal(err)
	}
}

// Kubectl runs kubectl as an administrator and returns what it printed.
func (p *ControlPlane) Kubectl(args ...string) string {
	p.Helper()
	out, err := childproc.Run(p.Context(), p.kubectl, append([]string{"--kubeconfig", p.cluster.KubeconfigPath}, args...)...)
	if err != nil {
		p.Fatal(err)
	}
	return string(out)
}

// Client runs a task until stop or the end of the test. stop returns the error of the task. An end by stop is
// no failure.
func (p *ControlPlane) Client(task func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- task(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	p.Cleanup(func() {
		if err := stop(); err != nil && !errors.Is(err, context.Canceled) {
			p.Errorf("ended with %v", err)
		}
	})
	return stop
}

// Eventually waits until check returns nil.
func (p *ControlPlane) Eventually(check func() error) {
	p.Helper()
	Eventually(p.T, func(context.Context) error { return check() })
}
