package pebble

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/hawser-io/hawser/internal/broker/store"
)

// TestKill repeatedly kills a process during its commits. All commits that the process reported must exist. The
// test runs itself as that process.
func TestKill(t *testing.T) {
	t.Parallel()
	const variable = "HAWSER_TEST_KILL"
	if d := os.Getenv(variable); d != "" {
		commitForEver(t, d)
		return
	}
	d := filepath.Join(t.TempDir(), dir)
	a := newAcked()
	for round := range 3 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKill$")
		cmd.Env = append(os.Environ(), variable+"="+d)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for read := 0; read < 40+30*round && lines.Scan(); read++ {
			a.note(t, lines.Text())
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() { // lines that were written before the end count too
			a.note(t, lines.Text())
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("the process ended by itself")
		}
		s := mustOpen(t, Options{Dir: d})
		for n := range a.last {
			a.tried[n] = 1 << 40
		}
		a.check(t, s)
		mustClose(t, s)
	}
	if len(a.last) == 0 {
		t.Fatal("nothing was committed")
	}
}

// note records one line of the process. The last line may be cut.
func (a acked) note(t *testing.T, line string) {
	t.Helper()
	var n int
	var version int64
	if _, err := fmt.Sscanf(line, "acked %d %d.", &n, &version); err == nil {
		a.last[n] = max(a.last[n], version)
	}
}

func commitForEver(t *testing.T, d string) {
	s := mustOpen(t, Options{Dir: d, memTableBytes: 64 << 10})
	start := int64(s.Head().Revision)
	for version := start + 1; ; version++ {
		n := int(version % 7)
		if _, err := s.Commit(context.Background(), []store.Op{testOp(n, version), testOp(n+100, version)}); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(os.Stdout, "acked %d %d.\nacked %d %d.\n", n, version, n+100, version)
	}
}
