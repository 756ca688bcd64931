// Package thirdparty fetches programs that the demo, tests and benchmarks run beside
// Hawser's: Debian's packages, unpacked and not installed.
package thirdparty

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// FetchPackage fetches program by internal/local/thirdparty/fetch.sh of the source tree at root, which
// lists the programs there are, unless that was done before. It returns the
// directory that holds the commands. progress, which may be nil, gets what the
// script says. The error says what to do where the machine has no packages.
func FetchPackage(ctx context.Context, root, program string, progress io.Writer) (string, error) {
	script := filepath.Join(root, "internal", "local", "thirdparty", "fetch.sh")
	if _, err := os.Stat(script); err != nil {
		return "", fmt.Errorf("fetch %s: run this in the source tree of Hawser: %w", program, err)
	}
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, script, program)
	cmd.Stderr = &output
	if progress != nil {
		cmd.Stderr = io.MultiWriter(&output, progress)
	}
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("fetch %s: %w\n%s", program, err, strings.TrimSpace(output.String()))
	}
	return strings.TrimSpace(string(out)), nil
}
