// Command ocm contains unchanged programs of Open Cluster Management v1.2.1 in one binary. These are the
// controllers of a hub, its gRPC server, and the two agents of a klusterlet. The first two arguments name the
// program, the rest is its own command line. `klusterlet registration agent --help` lists it.
//
// The end-to-end tests in test/e2e/ocm run it as processes. OCM registers the same protobuf package as Hawser,
// so it links no code of Hawser. Two values can differ from OCM's, so that tests do not wait for minutes.
// HAWSER_TEST_RESYNC is the interval at which an agent checks its certificate (OCM: 5 minutes).
// HAWSER_TEST_RETRY is the time that an agent waits after it lost its connection (OCM: 5 s to 2 minutes).
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
