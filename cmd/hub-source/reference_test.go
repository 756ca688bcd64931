package main

import (
	"io"
	"testing"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/testkit/refdocs"
)

// TestReference compares the page of this program in docs/reference with the program.
func TestReference(t *testing.T) {
	cfg := defaults()
	root := cmdline.Command(program, command(io.Discard, io.Discard).Short, io.Discard, io.Discard, nil)
	cfg.addFlags(root.Flags())
	refdocs.Check(t, refdocs.Page{Root: "../..", Command: root, Config: cfg})
}
