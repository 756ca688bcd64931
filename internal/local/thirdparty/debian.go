// Package thirdparty fetches third-party programs for the demo, tests and benchmarks: Debian packages, unpacked
// and not installed.
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

// FetchPackage fetches program with internal/local/thirdparty/fetch.sh of the source tree at root, unless it
// exists. The script lists the known programs. FetchPackage returns the directory with the commands. progress,
// which may be nil, receives the output of the script. The error has the remedy if the machine has no packages.
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
