// Package ocm runs the programs of Open Cluster Management itself. Its controllers run on a real hub, and the
// two agents of its klusterlet on a real managed cluster. OCM's own gRPC server runs between them first, to
// prove that the rig is right, and then Hawser. The programs are processes of the module test/ocm, built by
// `make klusterlet`. This package links none of their code.
package ocm

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hawser-io/hawser/internal/local/controlplane"
)

const (
	root = "../../.."
	// ocmImage is the program that contains all programs of OCM.
	ocmImage = root + "/bin/klusterlet"
)

// planes is the directory of the programs controlplane and kubectl.
var planes string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if _, err := os.Stat(ocmImage); err != nil {
		fmt.Fprintf(os.Stderr, "e2e: the programs are not built, run the tests with make e2e-ocm: %v\n", err)
		return 1
	}
	abs, err := filepath.Abs(root)
	if err == nil {
		planes, err = controlplane.Build(context.Background(), abs, os.Stderr)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "e2e: %v\n", err)
		return 1
	}
	return m.Run()
}
