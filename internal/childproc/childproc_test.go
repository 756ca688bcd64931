package childproc_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/childproc"
)

func shell(t *testing.T, script string) childproc.Spec {
	t.Helper()
	return childproc.Spec{Name: "child", Path: "/bin/sh", Args: []string{"-c", script}, LogFile: filepath.Join(t.TempDir(), "log")}
}

func TestStart_WaitsUntilReady(t *testing.T) {
	flag := filepath.Join(t.TempDir(), "ready")
	s := shell(t, "touch "+flag+"; exec cat </dev/zero >/dev/null")
	s.Ready = func(context.Context) error { _, err := os.Stat(flag); return err }
	p, err := childproc.Start(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(); err != nil {
		t.Fatalf("stopping twice: %v", err)
	}
}

func TestStart_ReportsOutputOfAFailedChild(t *testing.T) {
	s := shell(t, "echo no such disk >&2; exit 3")
	s.Ready = func(context.Context) error { return errors.New("refused") }
	_, err := childproc.Start(t.Context(), s)
	if err == nil || !strings.Contains(err.Error(), "no such disk") || !strings.Contains(err.Error(), "exit status 3") {
		t.Fatalf("got %v", err)
	}
}

func TestStart_AnotherProcessBeingReadyIsNotEnough(t *testing.T) {
	s := shell(t, "exit 4")
	ended := make(chan struct{})
	s.Ready = func(context.Context) error {
		select {
		case <-ended: // the second call comes after the process has ended
			return nil
		case <-time.After(100 * time.Millisecond):
			close(ended)
			return nil
		}
	}
	if _, err := childproc.Start(t.Context(), s); err == nil || !strings.Contains(err.Error(), "exit status 4") {
		t.Fatalf("got %v", err)
	}
}

func TestStart_NotReadyInTimeLeavesNothingRunning(t *testing.T) {
	s := shell(t, "exec cat </dev/zero >/dev/null")
	s.Ready, s.ReadyWithin = func(context.Context) error { return errors.New("still closed") }, 200*time.Millisecond
	_, err := childproc.Start(t.Context(), s)
	if err == nil || !strings.Contains(err.Error(), "still closed") {
		t.Fatalf("got %v", err)
	}
}

func TestRun_ErrorHoldsStandardError(t *testing.T) {
	if out, err := childproc.Run(t.Context(), "/bin/sh", "-c", "echo fine"); err != nil || string(out) != "fine\n" {
		t.Fatalf("got %q, %v", out, err)
	}
	_, err := childproc.Run(t.Context(), "/bin/sh", "-c", "echo broken >&2; exit 1")
	if err == nil || !strings.Contains(err.Error(), "broken") {
		t.Fatalf("got %v", err)
	}
}
