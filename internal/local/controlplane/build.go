package controlplane

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// buildStopTime is how long a build that is told to stop may take to clean up.
const buildStopTime = 10 * time.Second

// Build builds the control plane and kubectl from the source tree at root,
// unless that was done before, and returns the directory that holds the
// programs "controlplane" and "kubectl". A first build takes minutes; progress,
// which may be nil, then gets a line every few seconds. When ctx ends, so does
// the build.
func Build(ctx context.Context, root string, progress io.Writer) (string, error) {
	script := filepath.Join(root, "test", "controlplane", "build.sh")
	if _, err := os.Stat(script); err != nil {
		return "", fmt.Errorf("build the control plane: run this in the source tree of Hawser: %w", err)
	}
	var out bytes.Buffer
	reported := newTail(progress)
	cmd := exec.CommandContext(ctx, script)
	cmd.Stdout, cmd.Stderr = &out, reported
	// The script passes the signal on to the compiler and removes what is half
	// done.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = buildStopTime
	err := cmd.Run()
	if ctx.Err() != nil {
		return "", fmt.Errorf("build the control plane: %w", context.Cause(ctx))
	}
	if err != nil {
		return "", fmt.Errorf("build the control plane: %w%s", err, reported.lastLines())
	}
	return strings.TrimSpace(out.String()), nil
}
