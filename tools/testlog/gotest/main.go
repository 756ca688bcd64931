// Command gotest runs `go test -json`. It stores the events in a file and prints the output of `go test`
// without -json.
//
//	go run ./tools/testlog/gotest FILE [FLAG...] [PACKAGE...]
//
// A flag with a value is one word, as -run=TestX. The exit status is 0 if the tests passed.
//
// With AGAIN=1 in the environment, failed tests run again, alone (see again.go). A test that then passes is
// flaky. It does not fail the run, and both of its outputs are in the folder flaky beside the file.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	passed, err := start(ctx, os.Args[1:], os.Getenv("AGAIN") == "1", "test/flaky.txt")
	stop()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "gotest:", err)
		os.Exit(2)
	case !passed:
		os.Exit(1)
	}
}
