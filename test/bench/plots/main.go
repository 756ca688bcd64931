// Command plots draws the pictures of docs/benchmarks.md from the committed outputs of make bench beside them.
//
//	go run ./test/bench/plots docs/benchmarks
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: plots DIR, the folder with the outputs of make bench")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintf(os.Stderr, "plots: %v\n", err)
		os.Exit(1)
	}
}

// write draws all charts from the outputs in dir into dir.
func write(dir string) error {
	pictures, err := drawAll(os.DirFS(dir))
	if err != nil {
		return err
	}
	for name, svg := range pictures {
		if err := os.WriteFile(filepath.Join(dir, name), svg, 0o644); err != nil { //nolint:gosec // documentation, for all users
			return err
		}
	}
	return nil
}
