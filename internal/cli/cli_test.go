package cli_test

import (
	"context"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/hawser-io/hawser/internal/cli"
	"github.com/hawser-io/hawser/internal/telemetry"
)

func TestMain(m *testing.M) {
	program := func() {
		now := func() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }
		if os.Getenv("OLD_CERT")+os.Getenv("DATA") != "" { // a broker runs in the script, and its certificates have the true date
			now = time.Now
		}
		os.Exit(cli.Main(context.Background(), cli.Env{Stdout: os.Stdout, Stderr: os.Stderr, Now: now, Program: os.Args[0]}, os.Args[1:]))
	}
	testscript.Main(m, map[string]func(){"hawser": program, "kubectl-hawser": program})
}

// Each script in testdata is a terminal session.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata", RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: func(e *testscript.Env) error {
			for name, value := range map[string]string{"RELEASE": telemetry.Release(), "GOVERSION": runtime.Version(), "GOOS": runtime.GOOS, "GOARCH": runtime.GOARCH} {
				e.Setenv(name, value)
			}
			return nil
		},
	})
}
