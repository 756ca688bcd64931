package join

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/local/controlplane"
)

const root = "../../.."

// plane is a kube-apiserver whose nodes start pods without containers.
type plane struct {
	*controlplane.Cluster
	kube kubernetes.Interface
}

// world is a machine with a hub and a cluster, contexts of one kubeconfig. The test itself runs the programs of
// their Deployments, each at a loopback address of its own.
type world struct {
	*testing.T
	bin, kubectl, dir string
	kubeconfig        string
	planes            map[string]plane
	addresses         map[string]string
}

// newWorld starts control planes with these names.
func newWorld(t *testing.T, names ...string) *world {
	t.Helper()
	return newWorldWith(t, func(string) []string { return nil }, names...)
}

// newWorldWith starts control planes with these names, with additional flags for each kube-apiserver.
func newWorldWith(t *testing.T, flags func(name string) []string, names ...string) *world {
	t.Helper()
	programs, err := controlplane.Build(t.Context(), root, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, kubectl: filepath.Join(programs, "kubectl"), dir: t.TempDir(), planes: map[string]plane{}, addresses: map[string]string{}}
	if w.bin, err = filepath.Abs(filepath.Join(root, "bin")); err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, name := range names {
		c, err := controlplane.Start(context.WithoutCancel(t.Context()), controlplane.Config{
			Binary: filepath.Join(programs, "controlplane"), Dir: filepath.Join(t.TempDir(), name), Nodes: 1, ExtraArgs: flags(name),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Stop(); err != nil {
				t.Error(err)
			}
		})
		cfg, err := c.RESTConfig()
		if err != nil {
			t.Fatal(err)
		}
		cfg.QPS = -1
		w.planes[name] = plane{c, kubernetes.NewForConfigOrDie(cfg)}
		files = append(files, c.KubeconfigPath)
	}
	w.kubeconfig = strings.Join(files, string(filepath.ListSeparator))
	return w
}

// env returns the environment of an operator's terminal.
func (w *world) env() []string { return []string{"KUBECONFIG=" + w.kubeconfig} }

// run runs a program, and returns what it printed.
func (w *world) run(program string, args ...string) string {
	w.Helper()
	cmd := exec.CommandContext(w.Context(), program, args...)
	cmd.Env, cmd.Dir = append(os.Environ(), w.env()...), w.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.Fatalf("%s %s: %v\n%s", filepath.Base(program), strings.Join(args, " "), err, out)
	}
	return string(out)
}

// address returns a loopback address that only this program of this test uses.
func (w *world) address(program string) string {
	w.Helper()
	if a := w.addresses[program]; a != "" {
		return a
	}
	for try := range 250 {
		a := fmt.Sprintf("127.79.%d.%d", os.Getpid()%250+1, len(w.addresses)+try+1)
		l, err := net.Listen("tcp", a+":8090")
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			w.Fatal(err)
		}
		w.addresses[program] = a
		return a
	}
	w.Fatal("no loopback address is free")
	return ""
}

// start runs the program of a Deployment as its pod would. It has the arguments, the files of the volumes, and
// the rights of the service account. replace are pairs of texts in its files. The program ends with stop, or
// with the test.
func (w *world) start(where, name string, replace ...string) (stop func()) {
	w.Helper()
	p := w.planes[where]
	d, err := p.kube.AppsV1().Deployments("hawser").Get(w.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	pod := pod{world: w, plane: p, dir: filepath.Join(w.dir, where+"-"+name), address: w.address(where + "/" + name)}
	args := pod.args(d, replace)
	spec := childproc.Spec{
		Name: name, Path: filepath.Join(w.bin, name), Args: args,
		Env: []string{"KUBECONFIG=" + pod.account(d.Spec.Template.Spec.ServiceAccountName)}, LogFile: filepath.Join(pod.dir, "log"),
	}
	process, err := childproc.Start(w.Context(), spec)
	if err != nil {
		w.Fatal(err)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		if err := process.Stop(); err != nil {
			w.Errorf("%s: %v", name, err)
		}
		if w.Failed() {
			w.Logf("%s:\n%s", name, process.LogTail())
		}
	}
	w.Cleanup(stop)
	return stop
}

// pod is the environment of one process that runs instead of a pod.
type pod struct {
	*world
	plane
	dir, address string
}

// args returns the arguments of a Deployment. Paths lead to the files of the volumes.
func (p pod) args(d *appsv1.Deployment, replace []string) []string {
	p.Helper()
	spec := d.Spec.Template.Spec
	container := spec.Containers[0]
	volumes := map[string]string{}
	var paths []string
	for _, m := range container.VolumeMounts {
		volumes[m.Name] = filepath.Join(p.dir, m.Name)
		paths = append(paths, m.MountPath, volumes[m.Name])
	}
	for _, v := range spec.Volumes {
		p.fill(volumes[v.Name], v, strings.NewReplacer(append(paths, replace...)...))
	}
	texts := paths
	for _, e := range container.Env {
		texts = append(texts, "$("+e.Name+")", p.value(d, e))
	}
	r := strings.NewReplacer(texts...)
	args := make([]string, len(container.Args))
	for i, a := range container.Args {
		args[i] = strings.NewReplacer(append(paths, "["+p.address+"]", p.address)...).Replace(r.Replace(a))
	}
	return args
}

// fill writes the files of a volume.
func (p pod) fill(dir string, v corev1.Volume, r *strings.Replacer) {
	p.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		p.Fatal(err)
	}
	files := map[string][]byte{}
	switch {
	case v.ConfigMap != nil:
		c, err := p.kube.CoreV1().ConfigMaps("hawser").Get(p.Context(), v.ConfigMap.Name, metav1.GetOptions{})
		if err != nil {
			p.Fatal(err)
		}
		for name, text := range c.Data {
			files[name] = []byte(text)
		}
	case v.Secret != nil:
		s, err := p.kube.CoreV1().Secrets("hawser").Get(p.Context(), v.Secret.SecretName, metav1.GetOptions{})
		if err != nil {
			if v.Secret.Optional != nil && *v.Secret.Optional {
				return
			}
			p.Fatal(err)
		}
		files = s.Data
	}
	for name, data := range files {
		if filepath.Ext(name) == ".yaml" {
			data = []byte(r.Replace(string(data)))
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			p.Fatal(err)
		}
	}
}

// value returns the value of an environment variable.
func (p pod) value(d *appsv1.Deployment, e corev1.EnvVar) string {
	p.Helper()
	switch from := e.ValueFrom; {
	case from == nil:
		return e.Value
	case from.SecretKeyRef != nil:
		s, err := p.kube.CoreV1().Secrets("hawser").Get(p.Context(), from.SecretKeyRef.Name, metav1.GetOptions{})
		if err != nil {
			p.Fatal(err)
		}
		return string(s.Data[from.SecretKeyRef.Key])
	case from.FieldRef.FieldPath == "status.podIP":
		return p.address
	case from.FieldRef.FieldPath == "metadata.namespace":
		return "hawser"
	}
	return d.Name + "-pod"
}

// account writes a kubeconfig with the rights of a service account and no others.
func (p pod) account(name string) string {
	p.Helper()
	token := strings.TrimSpace(p.run(p.kubectl, "--kubeconfig", p.KubeconfigPath, "-n", "hawser", "create", "token", name))
	c, err := clientcmd.LoadFromFile(p.KubeconfigPath)
	if err != nil {
		p.Fatal(err)
	}
	for _, a := range c.AuthInfos {
		a.ClientCertificate, a.ClientCertificateData, a.ClientKey, a.ClientKeyData, a.Token = "", nil, "", nil, token
	}
	file := filepath.Join(p.dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*c, file); err != nil {
		p.Fatal(err)
	}
	return file
}

// eventually runs hawser until it prints a text.
func (w *world) eventually(want string, args ...string) string {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	for {
		cmd := exec.CommandContext(ctx, filepath.Join(w.bin, "hawser"), args...)
		cmd.Env, cmd.Dir = append(os.Environ(), w.env()...), w.dir
		out, err := cmd.CombinedOutput()
		if err == nil && bytes.Contains(out, []byte(want)) {
			return string(out)
		}
		select {
		case <-ctx.Done():
			w.Fatalf("hawser %s does not print %q:\n%s", strings.Join(args, " "), want, out)
		case <-time.After(200 * time.Millisecond):
		}
	}
}
