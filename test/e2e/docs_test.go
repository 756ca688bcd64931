package e2e

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/testkit/shellblocks"
)

// TestDocumentation_CommandsForTheDemo runs the commands that README and docs/ print for a running demo, one
// block after the other, on this fleet. Only the demo's directory and its broker's address are replaced. Each
// block works a second time too, because it cleans up after itself.
func TestDocumentation_CommandsForTheDemo(t *testing.T) {
	blocks, err := shellblocks.Find(shared.Root)
	if err != nil {
		t.Fatal(err)
	}
	demo := shellblocks.Of(shellblocks.Demo, blocks)
	if len(demo) == 0 {
		t.Fatal("no block marked \"sh test demo\" found: the README has some")
	}
	r := shellblocks.Runner{
		Dir:  shared.Root,
		Path: []string{filepath.Join(shared.Root, "bin")},
		Replace: []string{
			".hawser-demo", filepath.Dir(shared.LogDir()),
			"127.77.0.10:8090", shared.BrokerAddr(),
		},
	}
	for _, b := range demo {
		t.Run(b.String(), func(t *testing.T) {
			for _, run := range []string{"first", "second"} {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				out, err := r.Run(ctx, b)
				cancel()
				if err != nil {
					t.Fatalf("the %s time: %v", run, err)
				}
				t.Log(out)
			}
		})
	}
}
