package fleet

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/childproc"
)

// shellProgram runs a script as a program of a fleet.
func shellProgram(t *testing.T, script string) *Program {
	t.Helper()
	return &Program{
		printf: t.Logf,
		spec: childproc.Spec{
			Name: "program", Path: "/bin/sh", Args: []string{"-c", script},
			LogFile: filepath.Join(t.TempDir(), "log"),
		},
	}
}

// await waits until cond holds.
func await(t *testing.T, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("it did not come to that within 30 s")
		}
	}
}

func TestProgram_RestartsAfterExit(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "mark")
	p := shellProgram(t, fmt.Sprintf("if [ -e %[1]s ]; then exec cat </dev/zero >/dev/null; fi; echo out of luck; touch %[1]s; exit 7", mark))
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return len(p.Crashes()) == 1 && p.Running() })
	if crash := p.Crashes()[0]; !strings.Contains(crash, "out of luck") {
		t.Errorf("the crash is %q, want the end of the log", crash)
	}
	p.Kill()
	if p.Running() || p.PID() != 0 {
		t.Error("a killed program runs")
	}
	if n := len(p.Crashes()); n != 1 {
		t.Errorf("%d crashes, want that a kill is none", n)
	}
}

func TestProgram_StopEndsTheAttempts(t *testing.T) {
	p := shellProgram(t, "exit 7")
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return len(p.Crashes()) > 0 })
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(); err != nil {
		t.Fatalf("stopping twice: %v", err)
	}
	if p.Running() {
		t.Error("it still runs")
	}
}

func TestProgram_PausesAndGoesOn(t *testing.T) {
	p := shellProgram(t, "exec cat </dev/zero >/dev/null")
	if err := p.Pause(); err == nil {
		t.Error("a program that does not run was paused")
	}
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	paused := func() bool {
		out, err := childproc.Run(t.Context(), "ps", "-o", "state=", "-p", strconv.Itoa(p.PID()))
		if err != nil {
			t.Fatal(err)
		}
		return strings.HasPrefix(string(out), "T")
	}
	if err := p.Pause(); err != nil {
		t.Fatal(err)
	}
	await(t, paused)
	if err := p.Resume(); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return !paused() })
}
