package cli_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/cli"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// lines receives the output of a verb, line by line.
type lines struct {
	mu    sync.Mutex
	text  bytes.Buffer
	moved chan struct{}
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, err := l.text.Write(b)
	select {
	case l.moved <- struct{}{}:
	default:
	}
	return n, err
}

// until waits for a text.
func (l *lines) until(t *testing.T, want string) {
	t.Helper()
	for {
		l.mu.Lock()
		found := strings.Contains(l.text.String(), want)
		l.mu.Unlock()
		if found {
			return
		}
		select {
		case <-l.moved:
		case <-t.Context().Done():
			t.Fatalf("no %q:\n%s", want, l.text.String())
		}
	}
}

// TestStatus: the exit status distinguishes failures from invalid arguments.
func TestStatus(t *testing.T) {
	b := testkit.StartBroker(t, testkit.Options{Port: true, Known: []identity.Identity{operator}})
	ca, cert, key := b.CA.Write(t.TempDir(), operator)
	for args, want := range map[string]int{
		"version": 0, "--version": 0, "get clusters": 0, "doctor": 0,
		"get cluster nowhere": 1, "get works --cluster nowhere": 1, "get discrepancies --source nowhere": 1, "get work nothing": 1, "force-delete work c w": 1, "allow agent/none": 1, "get clusters --broker 127.0.0.1:1": 1,
		"nonsense": 2, "get nonsense": 2, "get clusters -o xml": 2, "get works --state lost": 2, "get clusters --context none": 2, "get works --cluster a --cluster b": 2, "force-delete work c": 2, "deny": 2,
	} {
		fields := strings.Fields(args)
		if strings.Contains(args, " ") && !strings.Contains(args, "--broker") || args == "doctor" {
			fields = append(fields, "--broker", b.Addr)
		}
		if len(fields) > 1 && fields[1] != "nonsense" {
			fields = append(fields, "--ca", ca, "--cert", cert, "--key", key, "--config", os.DevNull)
		}
		env := cli.Env{Stdout: io.Discard, Stderr: io.Discard, Now: time.Now}
		if got := cli.Main(t.Context(), env, fields); got != want {
			t.Errorf("hawser %s: status %d, want %d", args, got, want)
		}
	}
}

// TestWatch: existing items are shown once, then each changed and each removed item.
func TestWatch(t *testing.T) {
	b := testkit.StartBroker(t, testkit.Options{Port: true, Known: []identity.Identity{operator, hub1}})
	ca, cert, key := b.CA.Write(t.TempDir(), operator)
	publish(t, b, hub1, work("cluster1", "id-web", "web", 4))
	connection := []string{"--broker", b.Addr, "--ca", ca, "--cert", cert, "--key", key}
	start := func(args ...string) (*lines, func() int) {
		ctx, cancel := context.WithCancel(t.Context())
		out, status := &lines{moved: make(chan struct{}, 1)}, make(chan int, 1)
		go func() {
			env := cli.Env{Stdout: out, Stderr: t.Output(), Now: time.Now, LookEvery: time.Millisecond}
			status <- cli.Main(ctx, env, append(args, connection...))
		}()
		return out, func() int { cancel(); return <-status }
	}
	works, endWorks := start("get", "works", "--watch", "--cluster", "cluster1")
	names, endNames := start("get", "works", "-w", "-o", "json")
	denials, endDenials := start("get", "denials", "-w")
	orphans, endOrphans := start("get", "discrepancies", "--watch")
	works.until(t, "cluster1   web    hub1     Live    4")
	names.until(t, `"name": "web"`)
	denials.until(t, "none\n")
	orphans.until(t, "none\n")

	publish(t, b, hub1, work("cluster1", "id-shop", "a-longer-name", 1))
	works.until(t, "cluster1   a-longer-name   hub1     Live    1")
	names.until(t, `"name": "a-longer-name"`)
	env := cli.Env{Stdout: io.Discard, Stderr: t.Output(), Now: time.Now}
	if status := cli.Main(t.Context(), env, append([]string{"deny", "agent/cluster9"}, connection...)); status != 0 {
		t.Fatal(status)
	}
	denials.until(t, "agent/cluster9")
	if status := cli.Main(t.Context(), env, append([]string{"allow", "agent/cluster9"}, connection...)); status != 0 {
		t.Fatal(status)
	}
	denials.until(t, "denial/agent/cluster9 is no longer listed\n")

	// A watch ends with Ctrl-C, so this is no failure.
	for _, end := range []func() int{endWorks, endNames, endDenials, endOrphans} {
		if status := end(); status != 0 {
			t.Errorf("status %d", status)
		}
	}
	if n := strings.Count(works.text.String(), "web"); n != 1 {
		t.Errorf("what did not change is shown %d times:\n%s", n, works.text.String())
	}
	if n := strings.Count(works.text.String(), "CLUSTER"); n != 1 {
		t.Errorf("%d headers:\n%s", n, works.text.String())
	}
	if strings.Contains(names.text.String(), `"List"`) {
		t.Errorf("a list without an end:\n%s", names.text.String())
	}

	// The work is unchanged, and its cluster has changed.
	works, endWorks = start("get", "works", "--watch", "--cluster", "cluster1")
	works.until(t, "the cluster is NeverConnected\n")
	printf(t, b, agent1, transport.Filter{Cluster: "cluster1", DataType: codec.ManifestBundles}, nil)
	works.until(t, "NotReported   -         -\n")
	if status := endWorks(); status != 0 {
		t.Errorf("status %d", status)
	}
}
