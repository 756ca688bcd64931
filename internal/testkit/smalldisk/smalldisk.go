// Package smalldisk gives a test its own small file system, which can be filled without harm. It needs Linux,
// and root or user namespaces.
package smalldisk

import (
	"bufio"
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// Disk is a file system of 256 MiB in its own namespace, until the test ends.
type Disk struct {
	// Dir is its path for processes inside.
	Dir string
	// holder is the process that keeps the namespace alive.
	holder int
}

// New returns a new disk. It fails the test if that is impossible.
func New(t testing.TB) *Disk {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(context.Background(), "unshare", "--user", "--map-root-user", "--mount", "sh", "-c", `mount -t tmpfs -o size=256m,mode=700 none "$0" && echo mounted && exec cat`, dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		cmd.Stderr = t.Output()
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			t.Error(err)
		}
	})
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("a tmpfs in a namespace of its own: %v", err)
	}
	return &Disk{Dir: dir, holder: cmd.Process.Pid}
}

// Command returns a command that sees the disk at Dir.
func (d *Disk) Command(ctx context.Context, args ...string) *exec.Cmd {
	enter := []string{"--target", strconv.Itoa(d.holder), "--user", "--preserve-credentials", "--mount", "--"}
	return exec.CommandContext(ctx, "nsenter", append(enter, args...)...)
}

// Path is the path of a file of the disk for the test itself.
func (d *Disk) Path(name string) string {
	return filepath.Join("/proc", strconv.Itoa(d.holder), "root", d.Dir, name)
}
