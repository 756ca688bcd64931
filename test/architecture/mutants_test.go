package architecture

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// TestMutants_Apply: each planted bug still applies to the code.
func TestMutants_Apply(t *testing.T) {
	patches, err := filepath.Glob(filepath.Join(root, "test/*/mutants/*.patch"))
	if err != nil || len(patches) == 0 {
		t.Fatalf("no mutant is found: %v", err)
	}
	for _, patch := range patches {
		name, err := filepath.Rel(root, patch)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "git", "apply", "--check", "--verbose", name)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
