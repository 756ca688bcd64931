package install

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const namespace, node = "hawser", "here"

// kubelet runs the pods of a control plane from their images. It uses the arguments, environment, users, volumes
// and tokens of their specs, and a read-only root if the spec requires it. The probes determine the status. An
// unknown field is an error.
type kubelet struct {
	t      *testing.T
	kube   kubernetes.Interface
	api    *rest.Config
	images string
	// hosts is the content of /etc/hosts, instead of DNS; ip returns the address of the next pod.
	hosts string
	ip    func(pod *corev1.Pod) string

	mu   sync.Mutex // guards pods for the server of the node
	pods map[types.UID]*container
	// claims are the directories of shared volumes, by claim.
	claims map[string]string
}

// container is a running container.
type container struct {
	pod    *corev1.Pod
	cmd    *exec.Cmd
	ended  chan error
	ready  bool
	done   bool // the program of a Job's pod has ended
	client http.Client
	// root is the root of its files, log the file with its output.
	root, log string
}

// run watches the pods until ctx ends, then stops all.
func (k *kubelet) run(ctx context.Context) {
	k.pods, k.claims = map[types.UID]*container{}, map[string]string{}
	// A Service has only endpoints on existing nodes.
	here, err := k.kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{})
	if err == nil {
		server, port := k.serve()
		defer server.Close()
		here.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
		here.Status.DaemonEndpoints.KubeletEndpoint.Port = port
		_, err = k.kube.CoreV1().Nodes().UpdateStatus(ctx, here, metav1.UpdateOptions{})
	}
	if err != nil {
		k.t.Errorf("kubelet: %v", err)
	}
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		if err := k.look(ctx); err != nil && ctx.Err() == nil {
			k.t.Errorf("kubelet: %v", err)
			break
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	for _, c := range k.pods {
		k.stop(c)
	}
}

// claim returns the directory of a volume that outlives its pods.
func (k *kubelet) claim(name string) string {
	if k.claims[name] == "" {
		k.claims[name] = k.t.TempDir()
	}
	return k.claims[name]
}

func (k *kubelet) stop(c *container) {
	if c.done {
		return
	}
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		k.t.Errorf("pod %s: %v", c.pod.Name, err)
	}
	select {
	case err := <-c.ended:
		if err != nil {
			k.t.Errorf("pod %s: its program ended: %v", c.pod.Name, err)
		}
	case <-time.After(40 * time.Second):
		k.t.Errorf("pod %s does not end: %v", c.pod.Name, c.cmd.Process.Kill())
	}
}

func (k *kubelet) look(ctx context.Context) error {
	list, err := k.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range list.Items {
		pod := &list.Items[i]
		c := k.pods[pod.UID]
		switch {
		case pod.DeletionTimestamp != nil:
			if c != nil {
				k.stop(c)
				k.mu.Lock()
				delete(k.pods, pod.UID)
				k.mu.Unlock()
			}
			now := int64(0)
			err = k.kube.CoreV1().Pods(namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		case c == nil:
			err = k.start(ctx, pod)
		default:
			err = k.probe(ctx, c)
		}
		if err != nil {
			return fmt.Errorf("pod %s: %w", pod.Name, err)
		}
	}
	return nil
}

// start binds a pod to this node, and runs its container.
func (k *kubelet) start(ctx context.Context, pod *corev1.Pod) error {
	if len(pod.Spec.Containers) != 1 || len(pod.Spec.InitContainers) > 0 {
		return errors.New("want one container")
	}
	if pod.Spec.NodeName == "" {
		if err := k.kube.CoreV1().Pods(namespace).Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: namespace}, Target: corev1.ObjectReference{Kind: "Node", Name: node},
		}, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	pod.Status.PodIP = k.ip(pod)
	dir := k.t.TempDir()
	image, err := unpack(k.images, pod.Spec.Containers[0].Image, filepath.Join(dir, "root"))
	if err != nil {
		return err
	}
	command, err := k.command(ctx, pod, image, dir)
	if err != nil {
		return err
	}
	c := &container{pod: pod, ended: make(chan error, 1), cmd: command, client: http.Client{Timeout: time.Second}}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	c.root, c.log = filepath.Join(dir, "root"), log.Name()
	c.cmd.Stdout, c.cmd.Stderr = log, log
	if err := c.cmd.Start(); err != nil {
		return err
	}
	k.t.Cleanup(func() {
		if text, err := os.ReadFile(log.Name()); k.t.Failed() {
			k.t.Logf("log of %s (%v):\n%s", pod.Name, err, text)
		}
	})
	go func() { c.ended <- c.cmd.Wait() }()
	k.mu.Lock()
	k.pods[pod.UID] = c
	k.mu.Unlock()
	return k.report(ctx, c, false)
}

// command returns the program of a container in its root, with the user, groups, mounts, environment and
// arguments of the spec.
func (k *kubelet) command(ctx context.Context, pod *corev1.Pod, image image, dir string) (*exec.Cmd, error) {
	c := pod.Spec.Containers[0]
	s, own := pod.Spec.SecurityContext, c.SecurityContext
	if s == nil || own == nil || s.RunAsUser == nil || *s.RunAsUser == 0 || s.RunAsGroup == nil || s.FSGroup == nil || !*s.RunAsNonRoot || len(c.Command) > 0 {
		return nil, fmt.Errorf("security context %v, command %v", s, c.Command)
	}
	root := filepath.Join(dir, "root")
	script := []string{"set -e", "mount --bind " + root + " " + root}
	var later []string
	for _, m := range c.VolumeMounts {
		source, err := k.volume(ctx, pod, m.Name, filepath.Join(dir, m.Name))
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", m.Name, err)
		}
		at := filepath.Join(root, m.MountPath)
		if err := os.MkdirAll(at, 0o755); err != nil { //nolint:gosec // what a container runtime makes
			return nil, err
		}
		script = append(script, "mount --bind "+source+" "+at)
		if m.ReadOnly {
			later = append(later, "mount -o remount,bind,ro "+at)
		}
	}
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "proc"), 0o750), os.WriteFile(filepath.Join(root, "etc", "hosts"), []byte(k.hosts), 0o644)); err != nil { //nolint:gosec // as in every container
		return nil, err
	}
	script = append(script, "mount --rbind /proc "+root+"/proc")
	if own.ReadOnlyRootFilesystem != nil && *own.ReadOnlyRootFilesystem {
		later = append(later, "mount -o remount,bind,ro "+root)
	}
	script = append(append(script, later...), fmt.Sprintf(`exec chroot --userspec=%d:%d --groups=%d %s "$@"`, *s.RunAsUser, *s.RunAsGroup, *s.FSGroup, root))
	env, err := k.env(ctx, pod)
	if err != nil {
		return nil, err
	}
	args := append([]string{"--mount", "sh", "-c", strings.Join(script, "\n"), "sh"}, image.Entrypoint...)
	for _, a := range c.Args {
		args = append(args, os.Expand(strings.NewReplacer("$(", "${", ")", "}").Replace(a), func(name string) string { return env[name] }))
	}
	cmd := exec.Command("unshare", args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd, nil
}

func (k *kubelet) env(ctx context.Context, pod *corev1.Pod) (map[string]string, error) {
	host, port, err := net.SplitHostPort(strings.TrimPrefix(k.api.Host, "https://"))
	if err != nil {
		return nil, err
	}
	env := map[string]string{"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
	for _, e := range pod.Spec.Containers[0].Env {
		switch from := e.ValueFrom; {
		case from == nil:
			env[e.Name] = e.Value
		case from.SecretKeyRef != nil:
			s, err := k.kube.CoreV1().Secrets(namespace).Get(ctx, from.SecretKeyRef.Name, metav1.GetOptions{})
			if err != nil {
				return nil, err
			}
			value, ok := s.Data[from.SecretKeyRef.Key]
			if !ok {
				return nil, fmt.Errorf("secret %s has no %s", s.Name, from.SecretKeyRef.Key)
			}
			env[e.Name] = string(value)
		case from.FieldRef != nil:
			value, ok := map[string]string{
				"status.podIP": pod.Status.PodIP, "metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "metadata.uid": string(pod.UID),
			}[from.FieldRef.FieldPath]
			if !ok {
				return nil, fmt.Errorf("variable %s is of field %s", e.Name, from.FieldRef.FieldPath)
			}
			env[e.Name] = value
		default:
			return nil, fmt.Errorf("variable %s comes from elsewhere", e.Name)
		}
	}
	return env, nil
}

// volume fills a directory with a volume of the pod.
func (k *kubelet) volume(ctx context.Context, pod *corev1.Pod, name, dir string) (string, error) {
	group := int(*pod.Spec.SecurityContext.FSGroup)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	for _, v := range pod.Spec.Volumes {
		if v.Name != name {
			continue
		}
		if v.PersistentVolumeClaim != nil {
			dir = k.claim(v.PersistentVolumeClaim.ClaimName)
		}
		files, mode, err := k.files(ctx, pod, v)
		if err != nil {
			return "", err
		}
		for file, data := range files {
			path := filepath.Join(dir, file)
			if err := errors.Join(os.WriteFile(path, data, mode), os.Chmod(path, mode), os.Chown(path, 0, group)); err != nil {
				return "", err
			}
		}
		// The directory belongs to root and to the group of the pod. So the pod may create files beside those of
		// the API.
		return dir, errors.Join(os.Chown(dir, 0, group), os.Chmod(dir, 0o2770|os.ModeSetgid))
	}
	return "", errors.New("the pod has none of that name")
}

func (k *kubelet) files(ctx context.Context, pod *corev1.Pod, v corev1.Volume) (map[string][]byte, os.FileMode, error) {
	mode := func(m *int32) os.FileMode { return os.FileMode(*m) }
	files := map[string][]byte{}
	switch {
	case v.ConfigMap != nil:
		m, err := k.kube.CoreV1().ConfigMaps(namespace).Get(ctx, v.ConfigMap.Name, metav1.GetOptions{})
		if err != nil {
			return nil, 0, err
		}
		for name, text := range m.Data {
			files[name] = []byte(text)
		}
		return files, mode(v.ConfigMap.DefaultMode), nil
	case v.Secret != nil:
		s, err := k.kube.CoreV1().Secrets(namespace).Get(ctx, v.Secret.SecretName, metav1.GetOptions{})
		if err != nil {
			return nil, 0, err
		}
		return s.Data, mode(v.Secret.DefaultMode), nil
	case v.Projected != nil:
		for _, source := range v.Projected.Sources {
			switch {
			case source.ServiceAccountToken != nil:
				token, err := k.kube.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, pod.Spec.ServiceAccountName, &authenticationv1.TokenRequest{
					Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}},
				}, metav1.CreateOptions{})
				if err != nil {
					return nil, 0, err
				}
				files[source.ServiceAccountToken.Path] = []byte(token.Status.Token)
			case source.ConfigMap != nil:
				m, err := k.kube.CoreV1().ConfigMaps(namespace).Get(ctx, source.ConfigMap.Name, metav1.GetOptions{})
				if err != nil {
					return nil, 0, err
				}
				for _, item := range source.ConfigMap.Items {
					files[item.Path] = []byte(m.Data[item.Key])
				}
			case source.DownwardAPI != nil:
				files["namespace"] = []byte(namespace)
			}
		}
		return files, 0o640, nil
	case v.EmptyDir != nil, v.PersistentVolumeClaim != nil:
		return files, 0, nil
	}
	return nil, 0, errors.New("of a kind that the test does not know")
}

// probe runs the probes of a container. If the program has ended, the test fails, except for a Job.
func (k *kubelet) probe(ctx context.Context, c *container) error {
	if c.done {
		return nil
	}
	select {
	case err := <-c.ended:
		if owner := metav1.GetControllerOf(c.pod); owner != nil && owner.Kind == "Job" {
			c.done = true
			return k.ended(ctx, c, err)
		}
		c.ended <- err
		return fmt.Errorf("its program ended: %w", err)
	default:
	}
	spec, ready := c.pod.Spec.Containers[0], true
	for _, p := range []*corev1.Probe{spec.StartupProbe, spec.LivenessProbe, spec.ReadinessProbe} {
		if p != nil {
			ready = ready && c.requestsAPI(ctx, p.HTTPGet)
		}
	}
	if ready == c.ready {
		return nil
	}
	return k.report(ctx, c, ready)
}

func (c *container) requestsAPI(ctx context.Context, get *corev1.HTTPGetAction) bool {
	port := get.Port.IntValue()
	for _, p := range c.pod.Spec.Containers[0].Ports {
		if p.Name == get.Port.StrVal {
			port = int(p.ContainerPort)
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(c.pod.Status.PodIP, strconv.Itoa(port))+get.Path, nil)
	if err != nil {
		return false
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// ended writes the status of a pod whose program has ended, with or without an error.
func (k *kubelet) ended(ctx context.Context, c *container, failed error) error {
	phase := corev1.PodSucceeded
	if failed != nil {
		phase = corev1.PodFailed
	}
	patch, err := json.Marshal(map[string]any{"status": corev1.PodStatus{Phase: phase, Message: fmt.Sprint(failed)}})
	if err == nil {
		_, err = k.kube.CoreV1().Pods(namespace).Patch(ctx, c.pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	return err
}

// report writes the status of a pod.
func (k *kubelet) report(ctx context.Context, c *container, ready bool) error {
	c.ready = ready
	status := map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}[ready]
	patch, err := json.Marshal(map[string]any{"status": corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: c.pod.Status.PodIP, PodIPs: []corev1.PodIP{{IP: c.pod.Status.PodIP}},
		Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.Now()}, {Type: corev1.ContainersReady, Status: status, LastTransitionTime: metav1.Now()},
		},
	}})
	if err != nil {
		return err
	}
	_, err = k.kube.CoreV1().Pods(namespace).Patch(ctx, c.pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// image is the configuration of an image.
type image struct{ Entrypoint []string }

// unpack writes the files of an image into a directory. ref ends in the image's name and version.
func unpack(images, ref, into string) (image, error) {
	var index struct {
		Manifests []struct {
			Digest      string
			Annotations map[string]string
			Platform    struct{ Architecture string }
		}
	}
	name, version, _ := strings.Cut(ref[strings.LastIndex(ref, "/")+1:], ":")
	layout := filepath.Join(images, name)
	blob := func(digest string) string {
		return filepath.Join(layout, "blobs", strings.ReplaceAll(digest, ":", "/"))
	}
	if err := readJSON(filepath.Join(layout, "index.json"), &index); err != nil {
		return image{}, err
	}
	if len(index.Manifests) != 1 || index.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != version {
		return image{}, fmt.Errorf("image %s is not in %s", ref, layout)
	}
	if err := readJSON(blob(index.Manifests[0].Digest), &index); err != nil {
		return image{}, err
	}
	for _, m := range index.Manifests {
		if m.Platform.Architecture != runtime.GOARCH {
			continue
		}
		var manifest struct {
			Config struct{ Digest string }
			Layers []struct{ Digest string }
		}
		if err := readJSON(blob(m.Digest), &manifest); err != nil {
			return image{}, err
		}
		for _, l := range manifest.Layers {
			if err := extract(blob(l.Digest), into); err != nil {
				return image{}, err
			}
		}
		var config struct{ Config image }
		return config.Config, readJSON(blob(manifest.Config.Digest), &config)
	}
	return image{}, fmt.Errorf("image %s is not for %s", ref, runtime.GOARCH)
}

func readJSON(name string, into any) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

func extract(layer, into string) error {
	f, err := os.Open(layer)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := filepath.Join(into, filepath.Clean("/"+h.Name))
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(name, h.FileInfo().Mode())
		} else {
			err = write(name, h.FileInfo().Mode(), r)
		}
		if err != nil {
			return err
		}
	}
}

func write(name string, mode os.FileMode, r io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil { //nolint:gosec // others than root run it
		return err
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

// addresses returns a function that assigns addresses to pods. The broker always gets the first one.
func addresses() func(*corev1.Pod) string {
	var mu sync.Mutex
	next := 1
	return func(pod *corev1.Pod) string {
		mu.Lock()
		defer mu.Unlock()
		if pod.Labels["app.kubernetes.io/name"] == "hawser-broker" {
			return subnet + "1"
		}
		next++
		return subnet + strconv.Itoa(next)
	}
}
