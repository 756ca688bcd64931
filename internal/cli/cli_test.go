package cli_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/hawser-io/hawser/internal/cli"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"hawser": func() {
			now := func() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }
			if os.Getenv("HAWSER_BROKER") != "" { // whose certificates are dated by the true one
				now = time.Now
			}
			os.Exit(cli.Main(context.Background(), cli.Env{Stdout: os.Stdout, Stderr: os.Stderr, Now: now}, os.Args[1:]))
		},
	})
}

// Each script in testdata is a session at a terminal.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata", RequireExplicitExec: true, RequireUniqueNames: true})
}
