// Package interop runs Hawser's broker, source and agent against the agent, the source and the broker of
// open-cluster-management.io/sdk-go. Those are processes of their own: the programs of the module
// test/interop/sdkgo. The tests are named after the conformance cases of the OCM protocol (C11, C12, …);
// README.md in test/interop/sdkgo lists them. Where Hawser differs from OCM on purpose, the test asserts
// Hawser's promise and docs/protocol/README.md gives the reason.
package interop

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-io/hawser/internal/pki"
)

// programs is the directory in which `make interop` writes the OCM programs.
const programs = "../../bin/interop"

// certs holds the authority and the certificates of all tests.
var certs pki.Dir

// ignoreSpawnThread is the goroutine that starts Mosquitto. It ends with this process.
var ignoreSpawnThread = goleak.IgnoreTopFunction("github.com/hawser-io/hawser/internal/childproc.newSpawnThread.func1")

// validFor is the validity of the certificates of one run.
const validFor = time.Hour

func TestMain(m *testing.M) {
	os.Exit(func() int {
		flag.Parse()
		dir, err := prepare()
		if err != nil {
			fmt.Fprintf(os.Stderr, "interoptest: %v\n", err)
			return 1
		}
		code := m.Run()
		if err := errors.Join(goleak.Find(ignoreSpawnThread), os.RemoveAll(dir)); err != nil {
			fmt.Fprintf(os.Stderr, "interoptest: %v\n", err)
			code = max(code, 1)
		}
		return code
	}())
}

// together is the number of concurrent tests. They mostly wait: an agent of sdk-go looks for deleted works only
// every 2 s.
const together = "8"

// prepare checks that the programs exist, and creates the CA.
func prepare() (dir string, err error) {
	if err := flag.Set("test.parallel", together); err != nil {
		return "", err
	}
	for _, name := range []string{"ocmagent", "ocmsource", "ocmbroker", "ocmregistration"} {
		if _, err := os.Stat(filepath.Join(programs, name)); err != nil {
			return "", fmt.Errorf("%w\nbuild the programs and run the tests with: make interop", err)
		}
	}
	if dir, err = os.MkdirTemp("", "interoptest-"); err != nil {
		return "", err
	}
	certs = pki.Dir(filepath.Join(dir, "pki"))
	if _, err = certs.Init("interop test authority", pki.Starting(time.Now(), validFor), false); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, nil
}
