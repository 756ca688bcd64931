// Command gotest runs `go test -json`: it keeps the events in a file and prints
// what `go test` prints without -json.
//
//	go run ./tools/testlog/gotest FILE [FLAG...] [PACKAGE...]
//
// A flag with a value is one word, as -run=TestX. The exit status is 0 if the
// tests passed.
//
// With AGAIN=1 in the environment the tests that failed are run once more, alone
// (see again.go). A test that passes then is flaky: it fails nothing, and both of
// its outputs are in the folder flaky beside the file.
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
