package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/pki"
)

const (
	// rigHost is the broker's address. It differs from that of the clients, 127.0.0.1. So none of their ports can be
	// the broker's while it restarts.
	rigHost = "127.0.0.77"
	// rigSource is the source of the light fleet.
	rigSource = "bench"
	// workBytes is the size of a work's data.
	workBytes = 2048
	// fleetReadyWithin includes the certificates of all agents.
	fleetReadyWithin = 3 * time.Minute
)

// rig is a broker as a process, and a light fleet as another.
type rig struct {
	subject
	agents
	dir, addr, admin string
	broker           *childproc.Process
}

// agents is the process of a light fleet.
type agents struct {
	control string // address for its commands
	process *childproc.Process
}

// cost is what a broker has spent since its start.
type cost struct {
	cpu    float64 // seconds
	allocs float64 // objects on the heap
}

func (c cost) minus(o cost) cost     { return cost{c.cpu - o.cpu, c.allocs - o.allocs} }
func (c cost) per(n int) cost        { return cost{c.cpu / float64(n), c.allocs / float64(n)} }
func (c cost) microseconds() float64 { return c.cpu * 1e6 }

// size is the size of a light fleet.
type size struct{ agents, works int }

func (s size) all() int { return s.agents * s.works }

// issueForRig makes the certificates of broker and source in a new directory.
func issueForRig(dir pki.Dir) error {
	if _, err := dir.Init("bench", pki.Starting(time.Now(), 24*time.Hour), false); err != nil {
		return err
	}
	for _, r := range []pki.Request{{Role: pki.Broker, Name: "broker", Hosts: []string{rigHost}}, {Role: pki.Source, Name: rigSource}} {
		r.Valid = pki.Starting(time.Now(), 24*time.Hour)
		if _, err := dir.Issue(r, false); err != nil {
			return err
		}
	}
	return nil
}

// withRig starts a broker with an empty store, and a light fleet that does nothing yet. It ends both after measure.
func withRig(ctx context.Context, s subject, z size, keys pki.Dir, measure func(*rig) error) (err error) {
	r := &rig{subject: s}
	if r.dir, err = os.MkdirTemp("", "hawser-bench-"+s.name+"-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.dir)) }()
	if r.addr, err = freeAddr(rigHost); err != nil {
		return err
	}
	if r.admin, err = freeAddr(rigHost); err != nil {
		return err
	}
	text := brokerConfig(keys, r.addr, r.admin, filepath.Join(r.dir, "data"))
	if err := os.WriteFile(r.config(), []byte(text), 0o600); err != nil {
		return err
	}
	if err := r.startBroker(ctx); err != nil {
		return err
	}
	defer func() { r.broker.Kill() }() // the last one
	fleet := lightFleet{subject: s, size: z, keys: keys, addr: r.addr, dir: r.dir}
	if r.agents, err = fleet.start(ctx); err != nil {
		return err
	}
	defer r.agents.process.Kill()
	if err = measure(r); err != nil {
		err = fmt.Errorf("%s: %w\n%s\n%s", s.name, err, r.broker.LogTail(), r.agents.process.LogTail())
	}
	return err
}

// brokerConfig returns the configuration of a broker, with both sources of the benchmarks.
func brokerConfig(keys pki.Dir, addr, admin, data string) string {
	return fmt.Sprintf(`listen: %q
adminListen: %q
dataDir: %q
tls: {certFile: %q, keyFile: %q, clientCAFile: %q}
identities: [{commonName: "hawser:source:%s", role: source, name: %s}, {commonName: "hawser:source:%s", role: source, name: %s}]
`, addr, admin, data, keys.Cert(pki.Broker, "broker"), keys.Key(pki.Broker, "broker"), keys.CACert(), rigSource, rigSource, source, source)
}

func (r *rig) config() string { return filepath.Join(r.dir, "broker.yaml") }

// lightFleet describes the process of a light fleet.
type lightFleet struct {
	subject
	size
	keys  pki.Dir
	addr  string // of the brokers
	dir   string // for the log
	first int    // number of the first agent
	// perAddress is the number of agents behind one IP address; 0: all.
	perAddress int
}

// start starts the light fleet. It does nothing yet.
func (f *lightFleet) start(ctx context.Context) (a agents, err error) {
	if a.control, err = freeAddr(rigHost); err != nil {
		return a, err
	}
	a.process, err = childproc.Start(ctx, childproc.Spec{
		Name: "lightfleet", Path: f.agentsPath, LogFile: filepath.Join(f.dir, "lightfleet.log"), ReadyWithin: fleetReadyWithin,
		Args: []string{
			"-addr", f.addr, "-pki", string(f.keys), "-protocol", strconv.Itoa(f.protocol), "-listen", a.control,
			"-first", strconv.Itoa(f.first), "-per-address", strconv.Itoa(f.perAddress), "-agents", strconv.Itoa(f.agents), "-works", strconv.Itoa(f.works), "-bytes", strconv.Itoa(workBytes),
		},
		Ready: func(ctx context.Context) error { _, err := a.order(ctx, "mark", nil); return err },
	})
	return a, err
}

func (r *rig) startBroker(ctx context.Context) error {
	p, err := childproc.Start(ctx, childproc.Spec{
		Name: "broker of " + r.name, Path: r.brokerPath, Args: []string{"--config", r.config()},
		LogFile: filepath.Join(r.dir, "broker.log"), Ready: readyAt(r.admin),
	})
	if err == nil {
		r.broker = p
	}
	return err
}

// order lets the light fleet execute a command. It returns the times that the command measured.
func (a agents) order(ctx context.Context, command string, args url.Values) (took []time.Duration, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+a.control+"/"+command+"?"+args.Encode(), nil)
	if err != nil {
		return nil, err
	}
	body, err := do(request)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", command, err)
	}
	return took, json.Unmarshal(body, &took)
}

// spent returns the cost of the running broker since its start.
func (r *rig) spent(ctx context.Context) (c cost, err error) {
	if c.cpu, err = cpuSeconds(r.broker.PID()); err != nil {
		return c, err
	}
	// The metric exists in every Go program, so a missing one is no case.
	c.allocs, err = metric(ctx, r.admin, "go_memstats_mallocs_total")
	return c, err
}

// during returns what the broker spent for some commands, and the times that the last one measured.
func (r *rig) during(ctx context.Context, commands ...string) (c cost, took []time.Duration, err error) {
	before, err := r.spent(ctx)
	if err != nil {
		return c, nil, err
	}
	for _, command := range commands {
		name, query, _ := strings.Cut(command, "?")
		args, err := url.ParseQuery(query)
		if err != nil {
			return c, nil, err
		}
		if took, err = r.order(ctx, name, args); err != nil {
			return c, nil, err
		}
	}
	after, err := r.spent(ctx)
	return after.minus(before), took, err
}

// arrivals is how all agents came into sync.
type arrivals struct {
	cost
	median, last time.Duration
}

func arrived(c cost, took []time.Duration) arrivals {
	median := percentile(took, 50) // sorts
	return arrivals{cost: c, median: median, last: took[len(took)-1]}
}

// start starts all agents and waits until they are in sync.
func (r *rig) start(ctx context.Context) (arrivals, error) {
	c, took, err := r.during(ctx, "start", "synced")
	if err != nil {
		return arrivals{}, err
	}
	return arrived(c, took), nil
}

// restart ends the broker by end, starts it again, and waits until all agents are in sync. The times begin before
// end; the cost is that of the new process alone.
func (r *rig) restart(ctx context.Context, end func() error) (arrivals, error) {
	if _, err := r.order(ctx, "mark", nil); err != nil {
		return arrivals{}, err
	}
	if err := end(); err != nil {
		return arrivals{}, err
	}
	if err := r.startBroker(ctx); err != nil {
		return arrivals{}, err
	}
	took, err := r.order(ctx, "synced", nil)
	if err != nil {
		return arrivals{}, err
	}
	c, err := r.spent(ctx)
	return arrived(c, took), err
}

// kill and stop end the broker by SIGKILL and SIGTERM.
func (r *rig) kill() error {
	r.broker.Kill()
	return nil
}

func (r *rig) stop() error { return r.broker.Stop() }
