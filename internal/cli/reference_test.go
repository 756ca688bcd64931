package cli

import (
	"io"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/testkit/refdocs"
)

// TestReference compares the page of hawser in docs/reference with its verbs.
func TestReference(t *testing.T) {
	root := newRoot(Env{Stdout: io.Discard, Stderr: io.Discard, Now: time.Now, Program: program})
	refdocs.Check(t, refdocs.Page{Root: "../..", Command: root, Files: []refdocs.File{{
		Title: "The file of contexts",
		About: "`~/.config/hawser/config.yaml`, or what `--config` or `HAWSER_CONFIG` names. `NAME` is that of a context.",
		Into:  &contexts{},
	}}})
}
