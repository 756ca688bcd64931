// Command ocm is programs of Open Cluster Management v1.2.1 in one, as
// they are: the controllers of a hub, its gRPC server, and the two agents of a
// klusterlet. The first two arguments name the program, the rest is its own
// command line; `klusterlet registration agent --help` lists it.
//
// The end-to-end tests in test/e2e/ocm run it as processes. OCM registers the
// same protobuf package as Hawser, so nothing of Hawser is linked into it. Two
// things can be other than stock, so that tests do not wait for minutes:
// HAWSER_TEST_RESYNC is how often an agent looks at its certificate (stock: 5
// minutes), HAWSER_TEST_RETRY how long an agent waits after it lost its
// connection (stock: 5 s to 2 minutes).
package main

import (
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "klusterlet: %v\n", err)
		os.Exit(1)
	}
}
