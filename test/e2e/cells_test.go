package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/local/fleet"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// name is a DNS name of a broker: connections to addr lead to the broker that it names now.
type name struct {
	addr string
	wg   sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	broker string
	conns  []net.Conn
	closed bool
}

func newName(t *testing.T, broker string) *name {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &name{addr: fmt.Sprintf("localhost:%d", l.Addr().(*net.TCPAddr).Port), broker: broker}
	n.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.wg.Go(func() { n.forward(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		n.mu.Lock()
		n.closed = true
		n.mu.Unlock()
		n.moveTo(broker)
		n.wg.Wait()
	})
	return n
}

// forward connects a client to the broker of this moment.
func (n *name) forward(client net.Conn) {
	defer func() { _ = client.Close() }()
	n.mu.Lock()
	addr := n.broker
	n.mu.Unlock()
	broker, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer func() { _ = broker.Close() }()
	n.mu.Lock()
	if n.closed || n.broker != addr {
		n.mu.Unlock()
		return
	}
	n.conns = append(n.conns, client, broker)
	n.mu.Unlock()
	n.wg.Go(func() {
		_, _ = io.Copy(broker, client)
		_ = broker.Close()
	})
	_, _ = io.Copy(client, broker)
}

// moveTo changes the broker of the name, and ends all connections to the former one.
func (n *name) moveTo(broker string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.broker = broker
	for _, c := range n.conns {
		_ = c.Close()
	}
	n.conns = nil
}

// secondCell starts another broker and another hub-source of the same hub, and returns the address of the broker. It
// serves the clusters whose namespace has the label cell=b, the cell of the fleet all others.
func (f *Fleet) secondCell(t *testing.T) string {
	t.Helper()
	source := f.Program(fleet.HubSource)
	restart := func(args []string) {
		if err := source.Stop(); err != nil {
			t.Fatal(err)
		}
		source.SetArgs(args)
		if err := source.Start(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	former := source.Args()
	restart(append(slices.Clone(former), "--namespace-selector=cell!=b"))
	t.Cleanup(func() { restart(former) })

	addr, admin := testkit.FreeAddr(t), testkit.FreeAddr(t)
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	run := func(base string, args, env []string, ready string) {
		f.Run(t, childproc.Spec{
			Name: base + "-b", Path: filepath.Join(f.Root, "bin", "hawser-"+base), Args: append(slices.Clone(f.Program(base).Args()), args...),
			Env: env, LogFile: filepath.Join(f.LogDir(), base+"-b.log"),
			Ready: fleet.Ready("http://" + ready + "/readyz"),
		})
	}
	run(fleet.Broker, []string{"--listen=" + addr, "--admin-listen=" + admin, "--data-dir=" + t.TempDir()}, nil, admin)
	admin = testkit.FreeAddr(t)
	run(fleet.HubSource, []string{
		"--broker=localhost:" + port, "--admin-listen=" + admin, "--namespace-selector=cell=b", "--webhook-listen=" + testkit.FreeAddr(t), "--leader-elect=false",
		"--leader-elect-resource-namespace=default", // of its saved state
	}, []string{"KUBECONFIG=" + f.Hub.KubeconfigPath}, admin) // the rights of deploy/ are for one namespace
	return addr
}

// applied returns the uid and the resourceVersion of what works have in a namespace of cluster2, and of the
// AppliedManifestWork of one work.
func (f *Fleet) applied(ctx context.Context, namespace, work string) (map[string]string, error) {
	got := map[string]string{}
	configs, err := f.API[cluster2].Kube.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, c := range configs.Items {
		if c.Name == "kube-root-ca.crt" {
			continue // of Kubernetes
		}
		got["ConfigMap "+c.Name] = string(c.UID) + " " + c.ResourceVersion
	}
	records, err := f.API[cluster2].Work.WorkV1().AppliedManifestWorks().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, r := range records.Items {
		if r.Spec.ManifestWorkName == work {
			got["AppliedManifestWork"] = string(r.UID) // its status may be written again
		}
	}
	return got, nil
}

// unchanged returns an error if objects were deleted, made or written since.
func (f *Fleet) unchanged(ctx context.Context, namespace string, before map[string]string, work string) error {
	now, err := f.applied(ctx, namespace, work)
	if diff := cmp.Diff(before, now); err == nil && diff != "" {
		err = fmt.Errorf("the move changed the cluster (-before +after):\n%s", diff)
	}
	return err
}

// TestClusterMovesToAnotherCell: a cluster moves from one group of brokers to another one of the same hub, by a label
// on the hub and a DNS name. Nothing on the cluster is written or deleted. Afterwards the other group serves it: a
// change arrives, and a work that was deleted during the move is deleted.
func TestClusterMovesToAnotherCell(t *testing.T) {
	f := &shared
	const moving = "moving"
	f.JoinAs(t, moving)
	ns := f.NamespaceOn(t, cluster2)
	other := f.secondCell(t)
	broker := newName(t, f.BrokerAddr())
	spec := f.AgentSpec(t, cluster2, moving, "--hub-identity=cells")
	driver := filepath.Join(filepath.Dir(f.LogDir()), fleet.AgentOf(moving), "config.yaml")
	text := strings.Replace(string(f.ConnectionFile(pki.Agent, moving)), f.BrokerAddr(), broker.addr, 1)
	if err := os.WriteFile(driver, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f.Run(t, spec)
	f.Deliver(t, harness.NewWork(t, moving, "kept", harness.ConfigMapYAML(ns, "kept", "1"), harness.ConfigMapYAML(ns, "second", "1")))
	f.Deliver(t, harness.NewWork(t, moving, "deleted", harness.ConfigMapYAML(ns, "deleted", "1")))
	before, err := f.applied(t.Context(), ns, "kept")
	if err != nil || len(before) != 4 {
		t.Fatal(before, err)
	}

	f.setCell(t, moving, "b")
	f.releasedBy(t, moving)
	harness.Consistently(t, func(ctx context.Context) error {
		return f.unchanged(ctx, ns, before, "kept")
	})
	// The hub changes while no cell has both the works and the agent.
	f.DeleteWork(t, moving, "deleted")
	delete(before, "ConfigMap deleted")
	broker.moveTo(other)
	f.gone(t, ns, moving, "deleted")
	if err := f.unchanged(t.Context(), ns, before, "kept"); err != nil {
		t.Error(err)
	}
	f.Ready(t, f.Update(t, moving, "kept", func(w *workv1.ManifestWork) {
		w.Spec.Workload.Manifests = []workv1.Manifest{harness.Manifest(t, harness.ConfigMapYAML(ns, "kept", "2"))}
	}))
	f.HasValue(t, cluster2, ns, "kept", "2")
	f.NoConfigMap(t, cluster2, ns, "second")
	f.DeleteWork(t, moving, "kept")
	f.gone(t, ns, moving, "kept")
}

// gone waits until a work has left the hub, and its AppliedManifestWork has left cluster2.
func (f *Fleet) gone(t *testing.T, namespace, cluster, work string) {
	t.Helper()
	harness.Eventually(t, func(ctx context.Context) error {
		_, err := f.Get(ctx, cluster, work)
		if err := harness.Absent(err, "ManifestWork "+work); err != nil {
			return err
		}
		switch left, err := f.applied(ctx, namespace, work); {
		case err != nil:
			return err
		case left["AppliedManifestWork"] != "":
			return errors.New("its AppliedManifestWork is on the cluster")
		}
		return nil
	})
}

// setCell sets the label of a cluster's namespace on the hub.
func (f *Fleet) setCell(t *testing.T, cluster, cell string) {
	t.Helper()
	kind, patch := harness.MergePatch(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"cell": cell}}})
	if _, err := f.HubAPI.Kube.CoreV1().Namespaces().Patch(t.Context(), cluster, kind, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// releasedBy waits until the broker of the fleet has no record of the cluster.
func (f *Fleet) releasedBy(t *testing.T, cluster string) {
	t.Helper()
	harness.Eventually(t, func(ctx context.Context) error {
		out, err := childproc.Run(ctx, filepath.Join(f.Root, "bin", "hawser"), "get", "works", "--cluster", cluster, "--broker", f.BrokerAddr(),
			"--ca", f.PKI().CACert(), "--cert", f.PKI().Cert(pki.Operator, "operator"), "--key", f.PKI().Key(pki.Operator, "operator"))
		if err == nil && strings.Contains(string(out), cluster) {
			err = fmt.Errorf("the broker still has works: %s", out)
		}
		return err
	})
}
