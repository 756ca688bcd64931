package ocm

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"text/template"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	addonclient "open-cluster-management.io/api/client/addon/clientset/versioned"
	clusterclient "open-cluster-management.io/api/client/cluster/clientset/versioned"
	workclient "open-cluster-management.io/api/client/work/clientset/versioned"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/local/controlplane"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

const (
	hubNamespace   = "open-cluster-management-hub"
	agentNamespace = "open-cluster-management-agent"
	bootstrapper   = "agent-registration-bootstrap"
	// addOnSigner signs the certificate of an add-on.
	addOnSigner = "example.com/add-on"
	// patience is the longest time of one step: OCM's agents wait 5 s and more after a failure.
	patience = 90 * time.Second
	// signedFor is the validity of certificates that OCM's hub signs. Agents renew them when 20 to 25 % of it
	// are left.
	signedFor = 90 * time.Second
)

// plane is a control plane with clients of its administrator.
type plane struct {
	*controlplane.Cluster
	kube     kubernetes.Interface
	clusters clusterclient.Interface
	works    workclient.Interface
	addons   addonclient.Interface
}

// rig is a hub with OCM's controllers and one managed cluster.
type rig struct {
	*testing.T
	dir        string
	hub, spoke *plane
	// pki signs for programs and operators. signer is the CA of OCM's controllers, which sign for clusters.
	pki, signer pki.Dir
	// module is the directory of OCM's sources, api that of OCM's API module.
	module, api string
}

// newRig starts a hub with OCM's controllers, and a managed cluster, with OCM's definitions and permissions. All
// ends with the test.
func newRig(t *testing.T) *rig {
	t.Helper()
	r := newPlanes(t)
	r.installHub()
	r.installSpoke()
	r.newSigner()
	r.program("registration", "registration controller", nil,
		"--kubeconfig="+r.hub.KubeconfigPath, "--namespace="+hubNamespace, "--disable-leader-election",
		"--enabled-registration-drivers=csr,grpc", "--grpc-ca-file="+r.signer.CACert(), "--grpc-key-file="+r.signer.CAKey(),
		"--grpc-signing-duration="+signedFor.String())
	return r
}

// newSigner creates the CA of OCM's controllers, and publishes it on the hub as OCM's operator does.
func (r *rig) newSigner() {
	r.Helper()
	r.signer = pki.Dir(filepath.Join(r.dir, "signer"))
	_, err := r.signer.Init("ocm signer", pki.Starting(time.Now(), 24*time.Hour), false)
	if err != nil {
		r.Fatal(err)
	}
	ca, err := os.ReadFile(r.signer.CACert())
	if err != nil {
		r.Fatal(err)
	}
	bundle := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "ca-bundle-configmap"}, Data: map[string]string{"ca-bundle.crt": string(ca)}}
	if _, err := r.hub.kube.CoreV1().ConfigMaps(hubNamespace).Create(r.Context(), bundle, metav1.CreateOptions{}); err != nil {
		r.Fatal(err)
	}
}

// newPlanes starts an empty hub and an empty managed cluster.
func newPlanes(t *testing.T) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "hawser-ocm-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("logs are kept in %s", dir)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	r := &rig{T: t, dir: dir, pki: pki.Dir(filepath.Join(dir, "pki"))}
	r.module, r.api = r.sources("open-cluster-management.io/ocm"), r.sources("open-cluster-management.io/api")
	if _, err := r.pki.Init("test authority", pki.Starting(time.Now(), 24*time.Hour), false); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { r.hub = r.plane("hub") })
	wg.Go(func() { r.spoke = r.plane("spoke") })
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return r
}

// sources returns the directory of a module from which the OCM programs are built.
func (r *rig) sources(module string) string {
	r.Helper()
	out, err := childproc.Run(r.Context(), "go", "-C", filepath.Join(root, "test", "ocm"), "list", "-mod=mod", "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		r.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// plane starts a control plane. Several goroutines call it, so it returns nil after an error instead of ending
// the test.
func (r *rig) plane(name string) *plane {
	log := r.log(name)
	c, err := controlplane.Start(context.WithoutCancel(r.Context()), controlplane.Config{
		Binary: filepath.Join(planes, "controlplane"), Dir: filepath.Join(r.dir, name), Nodes: 1, Log: log,
	})
	if err != nil {
		r.Error(err)
		return nil
	}
	r.Cleanup(func() {
		if err := c.Stop(); err != nil {
			r.Error(err)
		}
		_ = log.Close() // the control plane has ended
	})
	cfg, err := c.RESTConfig()
	if err != nil {
		r.Error(err)
		return nil
	}
	cfg.QPS = -1
	return &plane{
		Cluster: c, kube: kubernetes.NewForConfigOrDie(cfg), clusters: clusterclient.NewForConfigOrDie(cfg),
		works: workclient.NewForConfigOrDie(cfg), addons: addonclient.NewForConfigOrDie(cfg),
	}
}

func (r *rig) log(name string) *os.File {
	f, err := os.Create(filepath.Join(r.dir, filepath.Base(name)+".log"))
	if err != nil {
		r.Error(err)
	}
	return f
}

// kubectl runs kubectl as the administrator of a plane; stdin may be "".
func (r *rig) kubectl(p *plane, stdin string, args ...string) string {
	r.Helper()
	cmd := exec.CommandContext(r.Context(), filepath.Join(planes, "kubectl"), append([]string{"--kubeconfig", p.KubeconfigPath}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		r.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

func (r *rig) apply(p *plane, yaml string) {
	r.Helper()
	r.kubectl(p, yaml, "apply", "--server-side", "-f", "-")
}

// definitions puts CRDs of OCM's API module on a plane.
func (r *rig) definitions(p *plane, groups ...string) {
	r.Helper()
	for _, g := range groups {
		dir := filepath.Join(r.api, g)
		r.kubectl(p, "", "apply", "--server-side", "-f", dir)
		r.kubectl(p, "", "wait", "--for=condition=Established", "--timeout=30s", "-f", dir)
	}
}

// manifests puts manifests of OCM's operator on the hub, as the operator renders them.
func (r *rig) manifests(names ...string) {
	r.Helper()
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(r.module, "manifests", "cluster-manager", "hub", name))
		if err != nil {
			r.Fatal(err)
		}
		var out strings.Builder
		values := map[string]any{"ClusterManagerName": "cluster-manager", "ClusterManagerNamespace": hubNamespace, "Labels": map[string]string{}}
		if err := template.Must(template.New(name).Parse(string(text))).Execute(&out, values); err != nil {
			r.Fatal(err)
		}
		r.apply(r.hub, out.String())
	}
}

func (r *rig) installHub() {
	r.Helper()
	r.definitions(r.hub, "cluster/v1", "cluster/v1beta2", "cluster/v1beta1", "addon/v1alpha1", "work/v1", "work/v1alpha1")
	r.apply(r.hub, "{apiVersion: v1, kind: Namespace, metadata: {name: "+hubNamespace+"}}")
	r.bootstrapAccount()
	r.manifests("grpc-server/serviceaccount.yaml", "grpc-server/clusterrole.yaml", "grpc-server/clusterrolebinding.yaml")
}

// bootstrapAccount creates the account for bootstrap tokens, as OCM's installation does.
func (r *rig) bootstrapAccount() {
	r.Helper()
	r.apply(r.hub, `
apiVersion: v1
kind: Namespace
metadata: {name: open-cluster-management}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: `+bootstrapper+`, namespace: open-cluster-management}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "open-cluster-management:bootstrap"}
rules:
- {apiGroups: [""], resources: [configmaps], verbs: [get]}
- {apiGroups: [certificates.k8s.io], resources: [certificatesigningrequests], verbs: [create, get, list, watch]}
- {apiGroups: [cluster.open-cluster-management.io], resources: [managedclusters], verbs: [get, create, list, watch]}
- {apiGroups: [cluster.open-cluster-management.io], resources: [managedclustersets/join], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "open-cluster-management:bootstrap:agent-registration"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "open-cluster-management:bootstrap"}
subjects: [{kind: ServiceAccount, name: `+bootstrapper+`, namespace: open-cluster-management}]
`)
}

func (r *rig) installSpoke() {
	r.Helper()
	r.definitions(r.spoke, "cluster/v1alpha1", "work/v1")
	r.apply(r.spoke, "{apiVersion: v1, kind: Namespace, metadata: {name: "+agentNamespace+"}}")
}

// token returns a bootstrap token.
func (r *rig) token(args ...string) string {
	r.Helper()
	return r.kubectl(r.hub, "", append([]string{"create", "token", bootstrapper, "-n", "open-cluster-management"}, args...)...)
}

// program runs a program of OCM until stop or the end of the test. Like a Deployment, it starts the program
// again when it ends.
func (r *rig) program(name, program string, env []string, args ...string) *supervised {
	r.Helper()
	_, port, err := net.SplitHostPort(testkit.FreeAddr(r.T))
	if err != nil {
		r.Fatal(err)
	}
	path, err := filepath.Abs(ocmImage)
	if err != nil {
		r.Fatal(err)
	}
	args = append(append(strings.Fields(program), "--listen=127.0.0.1:"+port), args...)
	return r.supervise(childproc.Spec{Name: name, Path: path, Args: args, Env: env, LogFile: filepath.Join(r.dir, name+".log")})
}

// supervised is a program that is started again when it ends.
type supervised struct {
	r    *rig
	spec childproc.Spec
	mu   sync.Mutex
	stop func()
}

func (r *rig) supervise(s childproc.Spec) *supervised {
	r.Helper()
	p := &supervised{r: r, spec: s}
	p.start()
	r.Cleanup(p.end)
	return p
}

// again is the wait before a new start, like a kubelet's first back-off.
const again = time.Second

func (p *supervised) start() {
	p.r.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	first, err := childproc.Start(p.r.Context(), p.spec)
	if err != nil {
		p.r.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(p.r.Context()))
	ended := make(chan struct{})
	p.stop = func() { cancel(); <-ended }
	go func() { // ends with stop
		defer close(ended)
		for running := first; ; {
			select {
			case <-ctx.Done():
				if running != nil {
					running.Kill()
				}
				return
			case <-doneOf(running):
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(again):
			}
			next, err := childproc.Start(ctx, p.spec)
			if err != nil {
				p.r.Errorf("%s: %v", p.spec.Name, err)
				return
			}
			running = next
		}
	}()
}

func doneOf(p *childproc.Process) <-chan struct{} { return p.Done() }

// end kills the program. start starts it again.
func (p *supervised) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stop != nil {
		p.stop()
		p.stop = nil
	}
}

// grpcServer runs OCM's own gRPC server as its ServiceAccount and returns its address.
func (r *rig) grpcServer() string {
	r.Helper()
	addr := testkit.FreeAddr(r.T)
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		r.Fatal(err)
	}
	cert, key := r.serving()
	config := r.write("grpc-server/config.yaml", fmt.Sprintf("tls_cert_file: %s\ntls_key_file: %s\nclient_ca_file: %s\nserver_bind_port: %q\n", cert, key, r.signer.CACert(), port))
	r.program("grpc-server", "server grpc", nil, "--kubeconfig="+r.kubeconfigOf(hubNamespace, "grpc-server-sa"), "--namespace="+hubNamespace,
		"--disable-leader-election", "--server-config="+config)
	r.eventually(func(ctx context.Context) error {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	return addr
}

// serving issues a serving certificate.
func (r *rig) serving() (cert, key string) {
	r.Helper()
	if _, err := r.pki.Issue(pki.Request{Role: pki.Broker, Name: "broker", Hosts: []string{"127.0.0.1"}, Valid: pki.Starting(time.Now(), 24*time.Hour)}, true); err != nil {
		r.Fatal(err)
	}
	return r.pki.Cert(pki.Broker, "broker"), r.pki.Key(pki.Broker, "broker")
}

// kubeconfigOf writes a kubeconfig of a ServiceAccount on the hub.
func (r *rig) kubeconfigOf(namespace, account string) string {
	r.Helper()
	token := r.kubectl(r.hub, "", "create", "token", account, "-n", namespace, "--duration=24h")
	text, err := os.ReadFile(r.hub.KubeconfigPath)
	if err != nil {
		r.Fatal(err)
	}
	file := r.write(account+"/kubeconfig", string(text))
	for _, args := range [][]string{
		{"config", "set-credentials", account, "--token=" + token}, {"config", "set-context", "--current", "--user=" + account},
	} {
		if _, err := childproc.Run(r.Context(), filepath.Join(planes, "kubectl"), append([]string{"--kubeconfig", file}, args...)...); err != nil {
			r.Fatal(err)
		}
	}
	return file
}

// write writes a file below the directory of the rig.
func (r *rig) write(name, text string) string {
	r.Helper()
	file := filepath.Join(r.dir, name)
	err := os.MkdirAll(filepath.Dir(file), 0o700)
	if err == nil {
		err = os.WriteFile(file, []byte(text), 0o600)
	}
	if err != nil {
		r.Fatal(err)
	}
	return file
}

// eventually waits until check returns nil.
func (r *rig) eventually(check func(ctx context.Context) error) {
	r.Helper()
	harness.EventuallyWithin(r.T, patience, check)
}
