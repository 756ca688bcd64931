package controlplane

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tree creates a source tree with this script as build.sh.
func tree(t *testing.T, script string) string {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, "test", "controlplane")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "build.sh")
	if err := os.WriteFile(name, []byte("#!/bin/sh\n"+script), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, 0o700); err != nil { //nolint:gosec // a script must be executable
		t.Fatal(err)
	}
	return root
}

func TestBuild_ReturnsOutputOfScript(t *testing.T) {
	var progress bytes.Buffer
	got, err := Build(t.Context(), tree(t, "echo compiling >&2; echo /cache/abc"), &progress)
	if err != nil || got != "/cache/abc" {
		t.Errorf("Build = %q, %v, want /cache/abc", got, err)
	}
	if progress.String() != "compiling\n" {
		t.Errorf("progress is %q", progress.String())
	}
}

func TestBuild_ErrorHasTheScriptOutput(t *testing.T) {
	_, err := Build(t.Context(), tree(t, "echo go is not in the PATH >&2; exit 1"), nil)
	if err == nil || !strings.Contains(err.Error(), "go is not in the PATH") {
		t.Errorf("Build = %v, want an error with the reason", err)
	}
}

func TestBuild_OutsideTheSourceTree(t *testing.T) {
	_, err := Build(t.Context(), t.TempDir(), nil)
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "source tree") {
		t.Errorf("Build = %v, want an error that names the directory to run in", err)
	}
}

// TestBuild_EndsWithItsContext: the script gets a signal and can clean up.
func TestBuild_EndsWithItsContext(t *testing.T) {
	reason := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	root := tree(t, `trap 'echo cleaned >cleaned; exit 143' TERM
cd "$(dirname "$0")"
echo began >&2
while :; do :; done
`)
	began := writerFunc(func(b []byte) (int, error) {
		cancel(reason)
		return len(b), nil
	})
	if _, err := Build(ctx, root, began); !errors.Is(err, reason) {
		t.Errorf("Build = %v, want %v", err, reason)
	}
	if _, err := os.Stat(filepath.Join(root, "test", "controlplane", "cleaned")); err != nil {
		t.Errorf("the script received no stop signal: %v", err)
	}
}
