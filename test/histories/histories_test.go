package histories

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/test/histories/judge"
)

var (
	length = flag.Duration("for", time.Minute, "how long faults happen")
	again  = flag.String("judge", "", "only judge the trace in this file")
)

const (
	replicaCount = 3
	sourceCount  = 2
	// runs is the folder with the traces and logs, and keep how many of them stay.
	runs = "../../.cache/histories"
	keep = 10
)

var clusters = names(3, "cluster%d")

// brokerProgram is the path of the built program.
var brokerProgram string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "histories-")
		if err == nil {
			brokerProgram = filepath.Join(dir, "hawser-broker")
			_, err = childproc.Run(context.Background(), "go", "build", "-o", brokerProgram, "../../cmd/broker")
		}
		code := 1
		if err == nil {
			code = m.Run()
		}
		if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		return code
	}())
}

// fleet is everything that a run consists of.
type fleet struct {
	trace    *trace
	database *database
	replicas []*replica
	sources  []*source
	agents   []*agent
	resting  atomic.Bool
}

// TestHistories lets faults happen for a time, lets everything come to rest, and judges what the clients saw.
func TestHistories(t *testing.T) {
	if *again != "" {
		history, err := readTrace(*again)
		if err != nil {
			t.Fatal(err)
		}
		printViolations(t, history)
		return
	}
	dir := newRun(t)
	f := newFleet(t, dir)
	f.awaitReady(t)
	ctx, stop := context.WithCancel(t.Context())
	clients, ctx := errgroup.WithContext(ctx)
	// A fault that failed ends the run before it rests. What was seen until then is judged too.
	defer func() {
		stop()
		if err := clients.Wait(); err != nil {
			t.Error(err)
		}
		printViolations(t, f.trace.all())
	}()
	for _, s := range f.sources {
		clients.Go(func() error { return s.run(ctx) })
	}
	for _, a := range f.agents {
		clients.Go(func() error { return a.run(ctx) })
	}
	faulty, calmDown := context.WithTimeout(ctx, *length)
	clients.Go(func() error { return f.restartClients(faulty) })
	clients.Go(func() error { return f.readAll(ctx) })
	f.storm(faulty, t)
	calmDown()
	f.rest(t)
	f.view(ctx, t)
}

// newRun creates the folder of a run, and removes old ones.
func newRun(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join(runs, time.Now().UTC().Format("20060102-150405.000")))
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	old, _ := filepath.Glob(filepath.Join(runs, "*")) // the pattern is valid
	slices.Sort(old)
	for _, o := range old[:max(0, len(old)-keep)] {
		err = errors.Join(err, os.RemoveAll(o))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("trace and logs: %s", dir)
	return dir
}

func newFleet(t *testing.T, dir string) *fleet {
	t.Helper()
	f := &fleet{trace: newTrace(t, filepath.Join(dir, "trace.jsonl"))}
	f.database = newDatabase(t, f.trace, t.TempDir())
	var fronts []string
	for _, name := range names(replicaCount, "broker%d") {
		r := startReplica(t, name, dir, f.database)
		f.replicas = append(f.replicas, r)
		fronts = append(fronts, r.front.addr)
	}
	addresses, sources := strings.Join(fronts, ","), names(sourceCount, "source%d")
	for _, name := range sources {
		f.sources = append(f.sources, newSource(t, f.trace, name, addresses, f.resting.Load))
	}
	for _, cluster := range clusters {
		f.agents = append(f.agents, newAgent(t, f.trace, "agent-"+cluster, cluster, addresses, sources))
	}
	return f
}

// rest ends all changes, waits until everything has arrived, and records what clients have.
func (f *fleet) rest(t *testing.T) {
	t.Helper()
	f.resting.Store(true)
	f.until(t, func() string {
		for _, s := range f.sources {
			if w := s.settled(); w != "" {
				return w
			}
		}
		for _, a := range f.agents {
			if w := a.settled(); w != "" {
				return w
			}
		}
		return ""
	})
	for _, s := range f.sources {
		s.final()
	}
	for _, a := range f.agents {
		a.final()
	}
}

// view subscribes at each broker for each cluster without state, and records what arrives, and what the store has.
func (f *fleet) view(ctx context.Context, t *testing.T) {
	t.Helper()
	if err := f.readStore(ctx); err != nil {
		t.Error(err)
	}
	var viewers []*agent
	ctx, stop := context.WithCancel(ctx)
	g, ctx := errgroup.WithContext(ctx)
	for _, r := range f.replicas {
		for _, c := range clusters {
			a := newAgent(t, f.trace, r.name+"-"+c, c, r.addr, nil)
			a.numbers = nil
			viewers = append(viewers, a)
			g.Go(func() error { return a.run(ctx) })
		}
	}
	f.until(t, func() string {
		for _, a := range viewers {
			if w := a.settled(); w != "" {
				return w
			}
		}
		return ""
	})
	for _, a := range viewers {
		a.final()
	}
	stop()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

// shown is the number of events of a violation that are printed.
const shown = 40

// printViolations prints the violations of a history.
func printViolations(t *testing.T, history []judge.Event) {
	t.Helper()
	count := map[judge.Kind]int{}
	for _, e := range history {
		count[e.Kind]++
	}
	t.Logf("events: %v", count)
	for _, v := range judge.Check(history) {
		var lines []string
		for _, e := range v.Events[max(0, len(v.Events)-shown):] {
			lines = append(lines, fmt.Sprintf("%+v", e))
		}
		t.Errorf("%s: %s\n\t%s", v.Rule, v.What, strings.Join(lines, "\n\t"))
	}
}
