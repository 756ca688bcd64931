// Command gotest stands behind `go test -json`: it keeps the events in a file
// and prints what `go test` prints without -json.
//
//	go test -json ./... | go run ./test/gotest FILE
//
// It says nothing about whether the tests passed: `go test` does.
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/hawser-io/hawser/internal/testkit/testlog"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go test -json PACKAGE... | go run ./test/gotest FILE")
		os.Exit(2)
	}
	if err := keep(os.Args[1], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		os.Exit(1)
	}
}

// keep writes what it reads to the file, anew, and prints it to dst.
func keep(file string, src io.Reader, dst io.Writer) (err error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := f.Close(); err == nil {
			err = closeErr
		}
	}()
	return testlog.Print(dst, f, src)
}
