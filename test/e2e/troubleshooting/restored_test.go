package troubleshooting

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/local/fleet"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// A managed cluster comes back from a backup of its etcd while its agent runs. The positions of its watches are
// then missing on the server, or belong to another history. Such a watch would deliver nothing, without an
// error.

// TestClusterRestored: the position of the server is before the positions of the agent's watches.
func TestClusterRestored(t *testing.T) {
	r := prepareRestore(t, "lima")
	r.restore(func() {})
	r.heals(t)
}

// TestClusterRestored_AndWentOn: after the restore the server is written to, until its position is later than
// those of the agent's watches. Only the missing writes of the agent itself reveal the other history.
func TestClusterRestored_AndWentOn(t *testing.T) {
	for name, args := range map[string][]string{"quito": nil, "bogota": {"--disable-leader-election"}} {
		t.Run(name, func(t *testing.T) {
			r := prepareRestore(t, name, args...)
			r.restore(r.overtake(t))
			r.heals(t)
		})
	}
}

// prepareRestore runs one more agent, the agent of name. Its work has the ConfigMap a before the backup. After
// the backup it has b too, and another value in a. The agent reaches the server only while the server is ready,
// as through a load balancer.
func prepareRestore(t *testing.T, name string, args ...string) *backup {
	t.Helper()
	f := &scene{shared}
	b := f.backup(t, cluster, f.API[cluster], "system:serviceaccount:hawser:hawser-agent",
		access("", "configmaps", ""), access("work.open-cluster-management.io", "appliedmanifestworks", ""), access("coordination.k8s.io", "leases", "hawser"))
	b.ns, b.agent = f.NamespaceOn(t, cluster), name
	b.door = f.agentBehindDoor(t, name, args...)
	f.Deliver(t, harness.NewWork(t, name, "restored", harness.ConfigMapYAML(b.ns, "a", "1")))
	b.take()
	f.Ready(t, f.shop(t, name, b.ns, "2"))
	// A repair shows that the agent watches again.
	if _, err := f.API[cluster].Kube.CoreV1().ConfigMaps(b.ns).Update(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.HasValue(t, cluster, b.ns, "a", "2")
	return b
}

// heals checks that the missing objects are restored, and that the hub shows the true state.
func (b *backup) heals(t *testing.T) {
	t.Helper()
	b.f.HasValue(t, cluster, b.ns, "b", "2")
	b.f.HasValue(t, cluster, b.ns, "a", "2")
	b.f.isTrue(t, b.f.shop(t, b.agent, b.ns, "3"), b.ns, "3")
}

// scene is the shared fleet with the steps of these tests.
type scene struct{ *harness.Fleet }

// shop sets both ConfigMaps of the work to a value.
func (f *scene) shop(t *testing.T, cluster, ns, value string) *workv1.ManifestWork {
	t.Helper()
	return f.Update(t, cluster, "restored", func(w *workv1.ManifestWork) {
		w.Spec.Workload.Manifests = []workv1.Manifest{
			harness.Manifest(t, harness.ConfigMapYAML(ns, "a", value)), harness.Manifest(t, harness.ConfigMapYAML(ns, "b", value)),
		}
	})
}

// isTrue checks that the cluster has the value at the moment when the hub shows the work as ready.
func (f *scene) isTrue(t *testing.T, w *workv1.ManifestWork, ns, value string) {
	t.Helper()
	f.Ready(t, w)
	for _, name := range []string{"a", "b"} {
		c, err := f.ConfigMap(t.Context(), cluster, ns, name)
		if err != nil || c.Data["key"] != value {
			t.Errorf("the hub reports all works applied and available, and %s is %v, %v", name, c.Data, err)
		}
	}
}

// TestHubRestored_AndWentOn: a hub comes back from a backup while hub-source runs. It is written to until its
// position is later than those of hub-source's informers. The cluster gets the older versions of the hub too.
func TestHubRestored_AndWentOn(t *testing.T) {
	f := &scene{shared}
	b := f.backup(t, "hub", f.HubAPI, "system:serviceaccount:hawser:hawser-hub-source",
		access("work.open-cluster-management.io", "manifestworks", ""), authorizationv1.ResourceAttributes{Group: "coordination.k8s.io", Resource: "leases", Namespace: "hawser", Name: "hawser-hub-source", Verb: "update"})
	b.ns = f.NamespaceOn(t, cluster)
	source := f.Program(fleet.HubSource)
	args := source.Args()
	var kubeconfig string
	b.door, kubeconfig = f.doorTo(t, fleet.HubSource)
	restart := func(args []string) {
		t.Helper()
		err := source.Stop()
		source.SetArgs(args)
		if err := errors.Join(err, source.Start(context.WithoutCancel(t.Context()))); err != nil {
			t.Fatal(err)
		}
	}
	restart(append(slices.Clone(args), "--kubeconfig="+kubeconfig, "--leader-elect-lease-duration=3m", "--leader-elect-renew-deadline=2m")) // the Lease must outlive the restore
	t.Cleanup(func() { restart(args) })
	w := harness.NewWork(t, cluster, "restored", harness.ConfigMapYAML(b.ns, "a", "1"))
	f.Deliver(t, w)
	b.take()
	f.Ready(t, f.shop(t, cluster, b.ns, "2"))
	f.HasValue(t, cluster, b.ns, "a", "2")
	b.restore(b.overtake(t))
	f.HasValue(t, cluster, b.ns, "a", "1")
}

// overtake returns a function that writes to the server until its position is later than the present one.
func (b *backup) overtake(t *testing.T) func() {
	t.Helper()
	was := b.position(t)
	return func() {
		for b.position(t) <= was {
			if _, err := b.api.Kube.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "other-"}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// position returns the resource version of the server.
func (b *backup) position(t *testing.T) int {
	t.Helper()
	l, err := b.api.Kube.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(l.ResourceVersion)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// backup is a backup of the etcd of a control plane.
type backup struct {
	f          *scene
	t          *testing.T
	name       string
	data, copy string
	api        harness.Clients
	// user is the account of the program behind the door. needs are the rights that it requires.
	user  string
	needs []authorizationv1.ResourceAttributes
	door  *door
	// agent is the name of an agent whose work has objects in the namespace ns of cluster.
	agent, ns string
}

func (f *scene) backup(t *testing.T, name string, api harness.Clients, user string, needs ...authorizationv1.ResourceAttributes) *backup {
	t.Cleanup(func() { // other tests need the control plane
		if err := f.StartControlPlane(name); err != nil {
			t.Errorf("start %s again: %v", name, err)
		}
	})
	return &backup{f: f, t: t, name: name, api: api, user: user, needs: needs, data: filepath.Join(filepath.Dir(f.LogDir()), name, "etcd"), copy: filepath.Join(t.TempDir(), "backup")}
}

// take makes the backup.
func (b *backup) take() {
	b.t.Helper()
	b.stopped(func() error { return os.CopyFS(b.copy, os.DirFS(b.data)) })
	b.door.open()
}

// restore restores the control plane from the backup. It calls then before the agent reaches the server again.
func (b *backup) restore(then func()) {
	b.t.Helper()
	b.stopped(func() error {
		return errors.Join(os.RemoveAll(b.data), os.CopyFS(b.data, os.DirFS(b.copy)))
	})
	then()
	b.door.open()
}

// stopped calls do while the control plane is stopped.
func (b *backup) stopped(do func() error) {
	b.t.Helper()
	b.door.close()
	err := b.f.StopControlPlane(b.name)
	if err == nil {
		err = do()
	}
	if err = errors.Join(err, b.f.StartControlPlane(b.name)); err != nil {
		b.t.Fatal(err)
	}
	b.knowsRoles()
}

func access(group, resource, namespace string) authorizationv1.ResourceAttributes {
	return authorizationv1.ResourceAttributes{Group: group, Resource: resource, Namespace: namespace, Verb: "get"}
}

// knowsRoles waits until the server has read its roles. Before that it forbids the requests of the program.
func (b *backup) knowsRoles() {
	b.t.Helper()
	for _, r := range b.needs {
		harness.Eventually(b.t, func(ctx context.Context) error {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: b.user, ResourceAttributes: &r}}
			got, err := b.api.Kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			if err == nil && !got.Status.Allowed {
				err = errors.New(b.user + " may not read " + r.Resource)
			}
			return err
		})
	}
}

// agentBehindDoor runs one more agent, the agent of name, that reaches the cluster through a door.
func (f *scene) agentBehindDoor(t *testing.T, name string, args ...string) *door {
	t.Helper()
	d, kubeconfig := f.doorTo(t, fleet.AgentOf(cluster))
	f.JoinAs(t, name)
	t.Cleanup(f.RunAgent(t, cluster, name, append(args, "--hub-identity="+name, "--spoke-kubeconfig="+kubeconfig)...))
	return d
}

// doorTo returns a door to the server that a program uses, and a kubeconfig for that door.
func (f *scene) doorTo(t *testing.T, program string) (d *door, path string) {
	t.Helper()
	kubeconfig := filepath.Join(filepath.Dir(f.LogDir()), program, "kubeconfig")
	cfg, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	d = newDoor(t)
	for _, c := range cfg.Clusters {
		server, err := url.Parse(c.Server)
		if err != nil {
			t.Fatal(err)
		}
		d.to, server.Host = server.Host, d.port.Addr().String()
		c.Server = server.String()
	}
	path = filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, path); err != nil {
		t.Fatal(err)
	}
	d.open()
	return d, path
}

// door is a TCP relay that can be opened and closed.
type door struct {
	t    *testing.T
	to   string
	port net.Listener
	wg   sync.WaitGroup

	mu     sync.Mutex
	opened bool
	ends   []net.Conn
}

func newDoor(t *testing.T) *door {
	t.Helper()
	port, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &door{t: t, port: port}
	d.wg.Go(func() {
		for {
			conn, err := port.Accept()
			if err != nil {
				return // the listener is closed
			}
			d.wg.Go(func() { d.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = port.Close()
		d.close()
		d.wg.Wait()
	})
	return d
}

func (d *door) open() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opened = true
}

func (d *door) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opened = false
	for _, c := range d.ends {
		_ = c.Close()
	}
	d.ends = nil
}

// through keeps connections so that close can end them. It returns an error if the door is closed.
func (d *door) through(ends ...net.Conn) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.opened {
		return errors.New("the door is closed")
	}
	d.ends = append(d.ends, ends...)
	return nil
}

func (d *door) serve(conn net.Conn) {
	defer conn.Close()
	if d.through(conn) != nil {
		return
	}
	inside, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(context.Background(), "tcp", d.to)
	if err != nil {
		return
	}
	defer inside.Close()
	if d.through(inside) != nil {
		return
	}
	d.wg.Go(func() { _, _ = io.Copy(inside, conn); _ = inside.Close() })
	_, _ = io.Copy(conn, inside)
}
