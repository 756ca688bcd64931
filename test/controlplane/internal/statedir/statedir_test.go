package statedir

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
)

func open(t *testing.T, path string) *Dir {
	t.Helper()
	d, err := Open(path)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Errorf("Close: %v", err)
		}
	})
	return d
}

// portOf closes the listener, and returns its port.
func portOf(t *testing.T, l net.Listener) int {
	t.Helper()
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return port
}

func TestOpen_RefusesADirectoryInUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "hub")
	first := open(t, path)
	_, err := Open(path)
	if err == nil {
		t.Fatal("a second Open of the same directory succeeded")
	}
	for _, want := range []string{path, fmt.Sprintf("process %d", os.Getpid()), first.Path("lock"), "--dir"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q lacks %q", err, want)
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, path)
}

func TestOpen_ErrorNamesPath(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(filepath.Join(file, "hub")); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("Open = %v, want an error that names %s", err, file)
	}
}

func TestDir_ListenRemembersTheFreePort(t *testing.T) {
	d := open(t, t.TempDir())
	l, err := d.Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	first := portOf(t, l)
	if first < firstFreePort || first >= firstFreePort+freePorts {
		t.Errorf("chose port %d, want one from %d to %d", first, firstFreePort, firstFreePort+freePorts-1)
	}
	if l, err = d.Listen(0); err != nil {
		t.Fatal(err)
	}
	if second := portOf(t, l); second != first {
		t.Errorf("chose port %d at the second start, want %d again", second, first)
	}
}

func TestDir_ListenTakesThePortOfTheFlag(t *testing.T) {
	d, other := open(t, t.TempDir()), open(t, t.TempDir())
	l, err := other.Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	port := portOf(t, l)
	if l, err = d.Listen(port); err != nil {
		t.Fatal(err)
	}
	if got := portOf(t, l); got != port {
		t.Errorf("listens on %d, want %d", got, port)
	}
	if l, err = d.Listen(0); err != nil {
		t.Fatal(err)
	}
	if got := portOf(t, l); got != port {
		t.Errorf("listens on %d at the next start, want %d", got, port)
	}
}

func TestDir_ListenReportsUsedPort(t *testing.T) {
	d, other := open(t, t.TempDir()), open(t, t.TempDir())
	l, err := other.Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	port := l.Addr().(*net.TCPAddr).Port
	check := func(flag int, want ...string) {
		t.Helper()
		_, err := d.Listen(flag)
		if !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatalf("Listen(%d) = %v, want EADDRINUSE", flag, err)
		}
		for _, w := range append(want, strconv.Itoa(port), "--port") {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("Listen(%d): error %q lacks %q", flag, err, w)
			}
		}
	}
	check(port, "--port 0")
	if err := os.WriteFile(d.Path("port"), []byte(strconv.Itoa(port)), 0o600); err != nil {
		t.Fatal(err)
	}
	check(0, d.Path("port"))
}

func TestDir_ListenRefusesADamagedMemory(t *testing.T) {
	for _, content := range []string{"", "https", "0", "70000"} {
		d := open(t, t.TempDir())
		if err := os.WriteFile(d.Path("port"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Listen(0); err == nil || !strings.Contains(err.Error(), d.Path("port")) {
			t.Errorf("Listen with %q remembered = %v, want an error that names the file", content, err)
		}
	}
}

func TestDir_EtcdSocketFitsIntoAnAddress(t *testing.T) {
	base := t.TempDir()
	t.Setenv("TMPDIR", "/short")
	short, err := (&Dir{path: "/state/hub"}).EtcdSocket()
	if err != nil || short != "/state/hub/etcd.sock" {
		t.Errorf("EtcdSocket of a short directory = %s, %v, want it inside", short, err)
	}
	long := filepath.Join(base, strings.Repeat("x", maxSocketPath))
	a, errA := (&Dir{path: long}).EtcdSocket()
	again, errAgain := (&Dir{path: long}).EtcdSocket()
	b, errB := (&Dir{path: long + "b"}).EtcdSocket()
	if err := errors.Join(errA, errAgain, errB); err != nil {
		t.Fatal(err)
	}
	if len(a) > maxSocketPath || filepath.Dir(a) != "/short" {
		t.Errorf("socket of a long directory is %s", a)
	}
	if a != again || a == b {
		t.Errorf("sockets %s, %s and, of another directory, %s: want two equal and one different", a, again, b)
	}
	t.Setenv("TMPDIR", long)
	if _, err := (&Dir{path: long}).EtcdSocket(); err == nil || !strings.Contains(err.Error(), "TMPDIR") {
		t.Errorf("EtcdSocket with a long TMPDIR = %v, want an error that names it", err)
	}
}

func TestDir_WriteKubeconfig(t *testing.T) {
	d := open(t, t.TempDir())
	certs, err := d.Certificates(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, server := range []string{"https://127.0.0.1:1", "https://127.0.0.1:2"} {
		path, err := d.WriteKubeconfig("hub", server, certs)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := clientcmd.BuildConfigFromFlags("", path)
		if err != nil {
			t.Fatal(err)
		}
		if cfg.Host != server {
			t.Errorf("the kubeconfig leads to %s, want %s", cfg.Host, server)
		}
		ca, err := os.ReadFile(certs.CACert)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(ca), string(cfg.CAData)); diff != "" {
			t.Errorf("authority (-want +got):\n%s", diff)
		}
		if len(cfg.CertData) == 0 || len(cfg.KeyData) == 0 {
			t.Error("the kubeconfig has no client certificate")
		}
	}
}
