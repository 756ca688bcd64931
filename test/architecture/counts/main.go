// Command counts prints counts about the wording of a tree, so that two states of it can be compared.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/hawser-io/hawser/test/architecture"
)

func main() {
	dir := flag.String("C", ".", "root of the tree; it need not compile")
	seed := flag.Uint64("seed", 0, "draw comments and paragraphs with this seed; 0 draws none")
	flag.Parse()
	if err := architecture.PrintCounts(os.Stdout, *dir, *seed); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
