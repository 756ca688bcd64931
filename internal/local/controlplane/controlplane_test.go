package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

// fakeMode makes this test binary behave as a control plane.
const fakeMode = "HAWSER_TEST_FAKE_CONTROLPLANE"

func TestMain(m *testing.M) {
	if mode := os.Getenv(fakeMode); mode != "" {
		os.Exit(fake(mode))
	}
	goleak.VerifyTestMain(m)
}

// fake is a control plane without a kube-apiserver. mode selects its behavior.
func fake(mode string) int {
	fmt.Fprintf(os.Stderr, "arguments: %q\n", os.Args[1:])
	switch mode {
	case "mute":
		_, _ = io.Copy(io.Discard, os.Stdin)
		return 0
	case "fails":
		for i := range 100 {
			fmt.Fprintf(os.Stderr, "line %d\n", i)
		}
		return 1
	case "ends":
		return 0
	}
	trouble := make(chan os.Signal, 1)
	signal.Notify(trouble, syscall.SIGUSR1)
	if _, err := fmt.Fprintln(os.Stdout, kubeconfigOf(os.Args[1:])); err != nil {
		return 4
	}
	switch mode {
	case "crashes":
		<-trouble
		fmt.Fprintln(os.Stderr, "disk is gone")
		return 3
	case "hangs":
		select {}
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

func kubeconfigOf(args []string) string {
	for i, arg := range args {
		if arg == "--dir" {
			return filepath.Join(args[i+1], "kubeconfig")
		}
	}
	return "no --dir"
}

func fakeConfig(t *testing.T, mode string) Config {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(fakeMode, mode)
	return Config{Binary: binary, Dir: t.TempDir()}
}

func start(t *testing.T, cfg Config) *Cluster {
	t.Helper()
	c, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	t.Cleanup(func() { _ = c.Kill() })
	return c
}

func TestStart_ReturnsThePathOfTheKubeconfig(t *testing.T) {
	cfg := fakeConfig(t, "runs")
	c := start(t, cfg)
	if want := filepath.Join(cfg.Dir, "kubeconfig"); c.KubeconfigPath != want {
		t.Errorf("KubeconfigPath = %s, want %s", c.KubeconfigPath, want)
	}
	select {
	case <-c.Done():
		t.Error("Done is closed while the control plane runs")
	default:
	}
}

func TestStart_PassesTheConfiguration(t *testing.T) {
	cfg := fakeConfig(t, "runs")
	var log bytes.Buffer
	cfg.Name, cfg.Port, cfg.Nodes, cfg.ExtraArgs, cfg.Log = "hub", 6443, 2, []string{"--audit-log-path=a"}, &log
	c := start(t, cfg)
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	want := []string{"--dir", cfg.Dir, "--port", "6443", "--nodes", "2", "--stdin", "--name", "hub", "--", "--audit-log-path=a"}
	if diff := cmp.Diff(fmt.Sprintf("arguments: %q\n", want), log.String()); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}

func TestStart_ErrorHasTheLastLines(t *testing.T) {
	_, err := Start(t.Context(), fakeConfig(t, "fails"))
	if err == nil {
		t.Fatal("Start of a control plane that fails succeeded")
	}
	for _, want := range []string{"exit status 1", "line 80\n", "line 99"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "line 79\n") {
		t.Errorf("the error has more than %d lines: %v", tailLines, err)
	}
}

func TestStart_EndWithoutOutputIsAnError(t *testing.T) {
	_, err := Start(t.Context(), fakeConfig(t, "ends"))
	if err == nil || !strings.Contains(err.Error(), "ended by itself") {
		t.Errorf("Start = %v, want an error", err)
	}
}

func TestStart_NamesAMissingBinary(t *testing.T) {
	cfg := Config{Binary: filepath.Join(t.TempDir(), "controlplane"), Dir: t.TempDir()}
	_, err := Start(t.Context(), cfg)
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "build.sh") {
		t.Errorf("Start = %v, want one with the build command", err)
	}
}

func TestStart_EndsWithItsContext(t *testing.T) {
	reason := errors.New("enough")
	t.Run("before it is ready", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cfg := fakeConfig(t, "mute")
		cfg.Log = writerFunc(func(b []byte) (int, error) { // the first output shows that the process runs
			cancel(reason)
			return len(b), nil
		})
		if _, err := Start(ctx, cfg); !errors.Is(err, reason) {
			t.Errorf("Start = %v, want %v", err, reason)
		}
	})
	t.Run("later", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		c, err := Start(ctx, fakeConfig(t, "hangs"))
		if err != nil {
			t.Fatal(err)
		}
		cancel(reason)
		if err := c.Wait(); err != nil {
			t.Errorf("Wait = %v, want nil, since the caller ended it", err)
		}
	})
}

func TestCluster_StopAndKillEndIt(t *testing.T) {
	for name, end := range map[string]func(*Cluster) error{"Stop": (*Cluster).Stop, "Kill": (*Cluster).Kill} {
		t.Run(name, func(t *testing.T) {
			c := start(t, fakeConfig(t, "runs"))
			if err := end(c); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			<-c.Done()
			for _, again := range []func() error{c.Stop, c.Kill, c.Wait} {
				if err := again(); err != nil {
					t.Errorf("after %s: %v", name, err)
				}
			}
		})
	}
}

func TestCluster_StopKillsHangingProcess(t *testing.T) {
	c := start(t, fakeConfig(t, "hangs"))
	c.stopTime = 10 * time.Millisecond
	err := c.Stop()
	if err == nil || !strings.Contains(err.Error(), "was killed") {
		t.Errorf("Stop = %v, want an error", err)
	}
	<-c.Done()
}

func TestCluster_CrashIsNotForgotten(t *testing.T) {
	c := start(t, fakeConfig(t, "crashes"))
	if err := c.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	for name, call := range map[string]func() error{"Wait": c.Wait, "Stop": c.Stop, "Kill": c.Kill} {
		err := call()
		if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "disk is gone") {
			t.Errorf("%s = %v, want one that reports the crash", name, err)
		}
	}
}

func TestCluster_ABrokenLogHarmsNothingAndIsReported(t *testing.T) {
	broken := errors.New("no room")
	cfg := fakeConfig(t, "runs")
	cfg.Log = writerFunc(func([]byte) (int, error) { return 0, broken })
	c := start(t, cfg)
	if err := c.Stop(); !errors.Is(err, broken) {
		t.Errorf("Stop = %v, want %v", err, broken)
	}
}

func TestCluster_RESTConfig(t *testing.T) {
	cfg := fakeConfig(t, "runs")
	c := start(t, cfg)
	if _, err := c.RESTConfig(); err == nil || !strings.Contains(err.Error(), cfg.Dir) {
		t.Errorf("RESTConfig without a file = %v, want an error that names %s", err, cfg.Dir)
	}
	const kubeconfig = `{"apiVersion": "v1", "kind": "Config", "current-context": "hub",
		"contexts": [{"name": "hub", "context": {"cluster": "hub"}}],
		"clusters": [{"name": "hub", "cluster": {"server": "https://127.0.0.1:6443"}}]}`
	if err := os.WriteFile(c.KubeconfigPath, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := c.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	if got.Host != "https://127.0.0.1:6443" || got.QPS != -1 {
		t.Errorf("RESTConfig leads to %s with %v requests per second, want no limit", got.Host, got.QPS)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
