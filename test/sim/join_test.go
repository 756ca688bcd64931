package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	programs "github.com/hawser-io/hawser/internal/taskgroup"
)

// join is a world in which clusters join. Broker, agents and hub-source are whole programs with their clients
// and informers. They run by themselves. Each message between them takes a time that follows from the seed. So
// the clock of the bubble determines the order.
//
//	agents (pkg/agent/registration) ── network, with faults ──► broker (internal/broker) ◄── hub-source
//	(internal/hubsource/registration and clustercontroller) ──► kube-apiserver of the hub (hubapi), with faults
type join struct {
	w   *world
	dir string // files of the CA

	mu   sync.Mutex // guards the fields below, and lines and broken of the world
	draw *rand.Rand

	hub    *joinHub
	broker *joinBroker
	source *joinSource
	agents []*joinAgent
	net    *joinNet
	oracle *joinOracle
}

// joinNames are the clusters.
var joinNames = []string{"c1", "c2"}

// newJoin creates the world with one agent for each cluster.
func newJoin(w *world, dir string) *join {
	j := &join{w: w, dir: dir, draw: rand.New(rand.NewPCG(w.seed, 11))}
	w.join = j
	j.oracle = newJoinOracle(j)
	j.hub = newJoinHub(j)
	j.net = &joinNet{j: j}
	j.broker = &joinBroker{j: j}
	j.source = &joinSource{j: j}
	j.broker.start()
	j.source.start()
	for _, name := range joinNames {
		j.enrol(name, false)
	}
	return j
}

// note records an event in the log of the run. The programs run concurrently.
func (j *join) note(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.w.note("%s "+format, append([]any{time.Now().Format("15:04:05.000")}, args...)...)
}

// fail records a violation of an invariant.
func (j *join) fail(invariant, format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.w.fail(invariant, format, args...)
}

// chance returns a number below n.
func (j *join) chance(n int) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.draw.IntN(n)
}

// pass lets time pass in small steps, and stops after a violation.
func (j *join) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// program is a running program that can be ended.
type program struct {
	stop context.CancelFunc
	done chan error
}

func begin(tasks ...programs.Task) *program {
	ctx, stop := context.WithCancel(context.Background())
	p := &program{stop: stop, done: make(chan error, 1)}
	go func() { p.done <- programs.Group(ctx, tasks...) }() // end waits for it
	return p
}

// end ends the program. Its goroutines may wait for answers, which come later.
func (p *program) end() error {
	p.stop()
	return <-p.done
}

// joinBroker is the broker with its store, which outlives the process.
type joinBroker struct {
	j       *join
	serving atomic.Pointer[broker.Broker] // nil: it is down
	store   *mem.Store
	backup  *mem.Backup
	program *program
	starts  int
}

func (b *joinBroker) up() bool { return b.serving.Load() != nil }

func (b *joinBroker) start() {
	b.starts++
	starts, ids := b.starts, 0
	b.store = mem.Open(mem.Options{From: b.backup, NewID: func() string { ids++; return fmt.Sprintf("store%d-%d", starts, ids) }})
	made, err := broker.New(broker.Config{
		Store: b.store, Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(), Registration: joinSourceID,
		Heartbeat: time.Minute, DrainTimeout: time.Second, NewID: b.j.w.newID,
	})
	if err != nil {
		panic(err)
	}
	b.program = begin(programs.Task{Name: "broker", Run: made.Run})
	b.serving.Store(made)
}

// end ends the broker. Its store keeps its content, or loses it.
func (b *joinBroker) end(loses bool) {
	if b.backup = b.store.Backup(); loses {
		b.backup = nil
	}
	b.serving.Store(nil)
	b.j.net.cutAll()
	if err := b.program.end(); err != nil {
		b.j.fail("I6", "the broker ended with %v", err)
	}
	if err := b.store.Close(); err != nil {
		panic(err)
	}
}

// The bounds of a world.
const (
	// joinSettle is the time until everything has converged: longer than every back-off and retry.
	joinSettle = 40 * time.Minute
	// certificateLifetime is short, so that certificates expire during a run.
	certificateLifetime = 12 * time.Minute
)

// joined is the world of clusters that join.
var joined = &shape{operations: joinOperations, themes: joinThemes, settles: joinSettle, join: true}

// playJoin performs a script; see [shape.play].
func (k *shape) playJoin(t *testing.T, seed uint64, list []op) (r result) {
	dir := t.TempDir()
	synctest.Test(t, func(*testing.T) {
		<-time.After(later)
		w := &world{seed: seed, shape: k, rng: rand.New(rand.NewPCG(seed, 2))}
		j := newJoin(w, dir)
		defer func() { r.broken, r.lines = w.broken, w.lines }()
		defer j.close()
		for _, o := range list {
			j.note("> %s", o)
			i := slices.IndexFunc(k.operations, func(p operation) bool { return p.name == o.name })
			did := k.operations[i].do(w, o.a, o.b)
			j.note("> %s: %s", o.name, did)
			r.did = append(r.did, did)
			if j.broken() {
				return
			}
			j.pass(time.Duration(o.b%3000) * time.Millisecond)
		}
		j.settle()
	})
	return r
}

func (j *join) broken() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.w.broken != nil
}

// settle ends the faults, lets the operator decide pending requests, and checks that everything has converged.
func (j *join) settle() {
	j.note("> the faults end")
	j.heal()
	var wrong []string
	for end := time.Now().Add(joinSettle); ; {
		j.decide()
		j.pass(time.Minute)
		if wrong = j.wrong(); j.broken() || len(wrong) == 0 || time.Now().After(end) {
			break
		}
	}
	for _, what := range wrong {
		j.fail("I1", "%s", what)
	}
}

// heal ends all faults, and removes the agents that use the name of another cluster.
func (j *join) heal() {
	j.hub.heal()
	j.net.heal()
	if !j.broker.up() {
		j.broker.start()
	}
	j.source.stop()
	j.source.start()
	for _, a := range slices.Clone(j.agents) {
		if a.imposter {
			j.leave(a)
			continue
		}
		j.mu.Lock()
		a.healthy = true
		j.mu.Unlock()
		if a.program == nil {
			a.start()
		}
	}
}

func (j *join) close() {
	j.hub.heal()
	for _, a := range j.agents {
		a.stop()
	}
	j.source.stop()
	if j.broker.up() {
		j.broker.end(false)
	}
	j.hub.api.EndWatches()
	j.net.close()
}

// ended reports an unexpected error with which a program ended.
func (j *join) ended(client string, err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		j.fail("I6", "%s ended with %v", client, err)
	}
}

// write writes a file of the world.
func (j *join) write(name string, content []byte) string {
	path := filepath.Join(j.dir, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		panic(err)
	}
	return path
}

// leastJoinSeeds and joinTime are the defaults of TestJoinSeeds.
const (
	leastJoinSeeds = 100
	joinTime       = 20 * time.Second
)

// TestJoinSeeds plays seeds in which clusters join. The environment selects the seeds.
func TestJoinSeeds(t *testing.T) { playSeeds(t, joined, leastJoinSeeds, joinTime) }
