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

// buildStopTime bounds the clean-up of a build after its stop signal.
const buildStopTime = 10 * time.Second

// Build builds the control plane and kubectl from the source tree at root, unless they exist. It returns the
// directory with the programs "controlplane" and "kubectl". A first build takes minutes; progress, which may be
// nil, then receives a line every few seconds. When ctx ends, the build ends too.
func Build(ctx context.Context, root string, progress io.Writer) (string, error) {
	script := filepath.Join(root, "test", "controlplane", "build.sh")
	if _, err := os.Stat(script); err != nil {
		return "", fmt.Errorf("build the control plane: run this in the source tree of Hawser: %w", err)
	}
	var out bytes.Buffer
	reported := newTail(progress)
	cmd := exec.CommandContext(ctx, script)
	cmd.Stdout, cmd.Stderr = &out, reported
	// The script forwards the signal to the compiler and removes incomplete files.
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
