package install

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// subnet is the prefix of the pods' addresses, in a network namespace of the test.
const subnet = "10.77.0."

// apart is the environment variable that is set inside that network namespace.
const apart = "HAWSER_TEST_APART"

// TestInstall_ThreeCommandsToAFirstWork: on bare control planes, three commands lead to a first applied work,
// without editing a file. The programs run from their images, as their pods specify.
func TestInstall_ThreeCommandsToAFirstWork(t *testing.T) {
	if os.Getenv(apart) == "" {
		inANetworkOfItsOwn(t)
		return
	}
	if err := bringUp(); err != nil {
		t.Fatal(err)
	}
	images := packImages(t)
	w := newWhere(t, 0, "hub", "cluster1")
	hosts := "127.0.0.1 localhost\n" + subnet + "1 hawser-broker.hawser.svc broker.example.com\n"
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	ip := addresses()
	for _, name := range []string{"hub", "cluster1"} {
		api := w.api(name)
		k := &kubelet{t: t, kube: kubernetes.NewForConfigOrDie(api), api: api, images: images, hosts: hosts, ip: ip}
		running.Go(func() { k.run(ctx) })
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	work, err := filepath.Abs(filepath.Join(root, "docs", "examples", "first-work.yaml"))
	if err != nil {
		t.Fatal(err)
	}

	w.run(w.hawser, hubArgs...)
	w.run(w.hawser, "install", "cluster", "cluster1", "--hub-context", "hub", "--context", "cluster1")
	w.run(w.kubectl, "--context", "hub", "apply", "-f", work)

	w.run(w.kubectl, "--context", "hub", "-n", "cluster1", "wait", "manifestwork", "first-work", "--for=condition=Applied", "--timeout=120s")
	w.run(w.kubectl, "--context", "cluster1", "get", "deployment", "first-work")
	// The commands that messages, notes and pages advise if a program is not ready.
	all := w.terminals()
	all[0].types(
		"kubectl -n hawser exec deploy/hawser-hub-source -- /hawser-hub-source doctor => ok round trip",
		"kubectl -n hawser logs deploy/hawser-broker => level=INFO",
	)
	all[1].types(
		"kubectl -n hawser exec deploy/hawser-agent -- /hawser-agent doctor => ok identity",
		"kubectl -n hawser logs deploy/hawser-agent => level=INFO",
	)
}

// bringUp gives the loopback device of a new network the addresses of the pods.
func bringUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	up, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	up.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	addr, err := unix.NewIfreq("lo:1")
	if err != nil {
		return err
	}
	mask := *addr
	err = errors.Join(addr.SetInet4Addr(net.ParseIP(subnet+"0").To4()), mask.SetInet4Addr(net.CIDRMask(24, 32)))
	for _, set := range []struct {
		what uint
		ifr  *unix.Ifreq
	}{{unix.SIOCSIFFLAGS, up}, {unix.SIOCSIFADDR, addr}, {unix.SIOCSIFNETMASK, &mask}} {
		if err == nil {
			err = unix.IoctlIfreq(fd, set.what, set.ifr)
		}
	}
	return errors.Join(err, unix.Close(fd))
}

// inANetworkOfItsOwn runs the test again in new namespaces. Their processes end with the command.
func inANetworkOfItsOwn(t *testing.T) {
	t.Helper()
	args := []string{"--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"}
	if os.Getuid() != 0 {
		args = append(args, "--map-root-user", "--map-auto")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", append(args, self, "-test.run=^"+t.Name()+"$", "-test.v")...)
	cmd.Env = append(os.Environ(), apart+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// packImages packs the programs in bin/ as `make images` does, for this machine.
func packImages(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	built := filepath.Join(dir, "bin", "linux_"+runtime.GOARCH)
	if err := os.MkdirAll(built, 0o750); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"hawser", "hawser-agent", "hawser-broker", "hawser-hub-source"} {
		from, err := filepath.Abs(filepath.Join(root, "bin", program))
		if err == nil {
			err = os.Symlink(from, filepath.Join(built, program))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", "-C", filepath.Join(root, "tools", "release"), ".",
		"-root", dir, "-version", "dev", "-time", "0", "-platforms", "linux/"+runtime.GOARCH, "images")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return filepath.Join(dir, "bin", "images")
}

// api returns the administrator's access to a control plane.
func (w where) api(name string) *rest.Config {
	w.Helper()
	files := ""
	for _, e := range w.env {
		if value, ok := strings.CutPrefix(e, "KUBECONFIG="); ok {
			files = value
		}
	}
	rules := &clientcmd.ClientConfigLoadingRules{Precedence: filepath.SplitList(files)}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: name}).ClientConfig()
	if err != nil {
		w.Fatal(err)
	}
	return cfg
}
