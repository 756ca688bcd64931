package docs

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestMake_WithoutGo: without Go, make reports that Go is missing, and its help still works.
func TestMake_WithoutGo(t *testing.T) {
	path := t.TempDir()
	for _, name := range []string{"make", "bash", "sh", "awk", "git"} {
		program, err := exec.LookPath(name)
		if err == nil {
			err = os.Symlink(program, filepath.Join(path, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for target, missing := range map[string]bool{"build": true, "demo": true, "help": false, "": false} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(path, "make"), strings.Fields("-n "+target)...)
		cmd.Dir, cmd.Env = root(t), []string{"PATH=" + path}
		out, err := cmd.CombinedOutput()
		if failed := errors.As(err, new(*exec.ExitError)); failed != missing || strings.Contains(string(out), "Go is not in the PATH: install Go") != missing {
			t.Errorf("make %s: %v\n%s", target, err, out)
		}
	}
}

// TestProgress: a build shows its progress while it runs, and hides messages without use for the developer.
func TestProgress(t *testing.T) {
	goOn := filepath.Join(t.TempDir(), "go-on")
	cmd := exec.CommandContext(t.Context(), filepath.Join(root(t), ".ci", "progress"), "building x", "sh", "-c", `
		echo the result
		echo go: downloading example.com/a v1.0.0 >&2
		echo example.com/a/b >&2
		until [ -e "$0" ]; do sleep 0.1; done
		echo 'x.go:1:2: wrong' >&2
		exit 3`, goOn)
	cmd.Env = append(os.Environ(), "HAWSER_PROGRESS_SECONDS=1")
	var out bytes.Buffer
	cmd.Stdout = &out
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	reports, others := 0, ""
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		switch {
		case !strings.HasPrefix(lines.Text(), "building x: "):
			others += lines.Text() + "\n"
		case strings.Contains(lines.Text(), ": 1 modules downloaded, 1 packages compiled, "):
			reports++
		}
		if reports == 2 { // the report is repeated
			if err := os.WriteFile(goOn, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	var ended *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &ended) || ended.ExitCode() != 3 {
		t.Errorf("it ended with %v, want the command's status 3", err)
	}
	if out.String() != "the result\n" || others != "x.go:1:2: wrong\n" {
		t.Errorf("standard output %q, beside the reports %q", out.String(), others)
	}
}

// TestBuild_NamesTheHolderOfTheLock: a build of the control plane that waits names the build that holds the
// lock.
func TestBuild_NamesTheHolderOfTheLock(t *testing.T) {
	cache := t.TempDir()
	dir := filepath.Join(cache, "controlplane")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	const holder = "the build of process 4711 in /elsewhere, since 12:34:56"
	if err := os.WriteFile(filepath.Join(dir, "holder"), []byte(holder+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sh", filepath.Join(root(t), "test", "controlplane", "build.sh"))
	cmd.Env = append(os.Environ(), "HAWSER_CACHE="+cache, "HAWSER_WAIT_SECONDS=0.1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	reported, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(reported)
	for range 2 { // the report is repeated
		if !lines.Scan() || lines.Text() != "control plane: waiting for "+holder {
			t.Errorf("%q", lines.Text())
		}
	}
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); !errors.As(err, new(*exec.ExitError)) {
		t.Errorf("it ended with %v", err)
	}
}
