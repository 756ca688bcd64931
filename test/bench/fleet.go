package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/hawser-io/hawser/internal/pki"
)

const (
	partFleet = "fleet"
	// oldest is the commit of comparison: the same service before the limits that protect the port.
	oldest = "ada167f"
	// updateRounds is how often a number of updatedClusters get an update each.
	updateRounds = 5
	// lastToMedian and perReturning are targets: the last agent beside the median one of the commit of comparison,
	// and the broker's processor time per returning agent in milliseconds. The median of the present broker would be
	// no measure: it serves arrivals in order, so half of them are in sync after half of the time.
	lastToMedian = 1.25
	perReturning = 1.2
	// updatedWithin is the target for an update in each of the most clusters, p99 in milliseconds.
	updatedWithin = 60
)

// updatedClusters are the numbers of clusters of which each gets an update.
var updatedClusters = [...]int{1000, 3000}

// fleetFigures are what one broker needs for a light fleet. Memory is in MiB.
type fleetFigures struct {
	publish                             cost // per publish
	idle, loaded, peak, later, sessions float64
	cold, killed, stopped               arrivals
	rest                                float64                                         // share of one processor
	updated                             [len(updatedClusters)]struct{ p50, p99 sample } // ms
}

// fleetPart measures the broker of commit ada167f and then the present one.
func fleetPart(ctx context.Context, root string, o options, out io.Writer) error {
	now, err := present(ctx, root)
	if err != nil {
		return err
	}
	before, err := checkout(ctx, root, oldest, now, o.ownAgents)
	if err != nil {
		return err
	}
	var all [2]fleetFigures
	err = withKeys(func(keys pki.Dir) error {
		for i, s := range []subject{before, now} {
			if err := withRig(ctx, s, o.fleet, keys, func(r *rig) (err error) {
				all[i], err = r.fleetFigures(ctx, o.fleet, o.idle)
				return err
			}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d agents × %d works of %d bytes at one address\n\n", o.fleet.agents, o.fleet.works, workBytes)
	writeMarkdown(out, fleetTable(before.name, all[0], all[1], o.fleet))
	goals := fleetGoals(all[0], all[1], o.fleet)
	writeGoals(out, goals)
	if o.check {
		return checkGoals(goals)
	}
	return nil
}

// withKeys makes certificates for the rigs of one run. The light agents add theirs.
func withKeys(use func(pki.Dir) error) (err error) {
	dir, err := os.MkdirTemp("", "hawser-bench-pki-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	keys := pki.Dir(filepath.Join(dir, "pki"))
	if err := issueForRig(keys); err != nil {
		return err
	}
	return use(keys)
}

// fleetFigures measures all figures, in the order of the table.
func (r *rig) fleetFigures(ctx context.Context, z size, idle time.Duration) (f fleetFigures, err error) {
	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"loading", func() error { return r.load(ctx, &f, z, idle) }},
		{"cold start", func() (err error) { f.cold, err = r.start(ctx); return err }},
		{"rest", func() error { return r.rest(ctx, &f, idle) }},
		{"updates", func() error { return r.updates(ctx, &f) }},
		{"restart after a kill", func() (err error) { f.killed, err = r.restart(ctx, r.kill); return err }},
		{"restart after SIGTERM", func() (err error) { f.stopped, err = r.restart(ctx, r.stop); return err }},
	} {
		fmt.Fprintf(os.Stderr, "bench: broker %s: %s\n", r.name, step.name)
		if err := step.run(); err != nil {
			return f, fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return f, nil
}

// load publishes all works, and measures the memory right after that and when the broker has been idle.
func (r *rig) load(ctx context.Context, f *fleetFigures, z size, idle time.Duration) (err error) {
	if f.idle, err = r.memory(vmRSS); err != nil {
		return err
	}
	c, _, err := r.during(ctx, "load")
	if err != nil {
		return err
	}
	f.publish = c.per(z.all())
	if f.loaded, err = r.memory(vmRSS); err != nil {
		return err
	}
	if f.peak, err = r.memory(vmPeak); err != nil {
		return err
	}
	if err := pass(ctx, idle); err != nil {
		return err
	}
	f.later, err = r.memory(vmRSS)
	return err
}

// rest measures processor and memory with all agents at rest, when they have rested for some time.
func (r *rig) rest(ctx context.Context, f *fleetFigures, idle time.Duration) error {
	if err := pass(ctx, idle); err != nil {
		return err
	}
	before, err := cpuSeconds(r.broker.PID())
	if err != nil {
		return err
	}
	began := time.Now()
	if err := pass(ctx, idle); err != nil {
		return err
	}
	after, err := cpuSeconds(r.broker.PID())
	if err != nil {
		return err
	}
	f.rest = (after - before) / time.Since(began).Seconds()
	f.sessions, err = r.memory(vmRSS)
	return err
}

func (r *rig) updates(ctx context.Context, f *fleetFigures) error {
	for i, clusters := range updatedClusters {
		for range updateRounds {
			took, err := r.order(ctx, "update", updateArgs(clusters, 1))
			if err != nil {
				return err
			}
			f.updated[i].p50 = append(f.updated[i].p50, milliseconds(percentile(took, 50)))
			f.updated[i].p99 = append(f.updated[i].p99, milliseconds(percentile(took, 99)))
		}
	}
	return nil
}

func updateArgs(clusters, rounds int) url.Values {
	return url.Values{"clusters": {strconv.Itoa(clusters)}, "rounds": {strconv.Itoa(rounds)}}
}

// memory returns a value of /proc in MiB.
func (r *rig) memory(read func(pid int) (int64, error)) (float64, error) {
	n, err := read(r.broker.PID())
	return float64(n) / (1 << 20), err
}

// fleetTable returns the rows of the table: figure, before, now, now : before.
func fleetTable(commit string, before, now fleetFigures, z size) [][]string {
	rows := [][]string{{"", commit, "now", "now : " + commit}}
	row := func(name, format string, of func(fleetFigures) float64) {
		b, n := of(before), of(now)
		ratio := "–" // the processor time at rest of a small fleet may be 0
		if b > 0 {
			ratio = fmt.Sprintf("%.2f", n/b)
		}
		rows = append(rows, []string{name, fmt.Sprintf(format, b), fmt.Sprintf(format, n), ratio})
	}
	row("processor per publish, µs", "%.0f", func(f fleetFigures) float64 { return f.publish.microseconds() })
	row("allocations per publish", "%.0f", func(f fleetFigures) float64 { return f.publish.allocs })
	row("memory when idle, MiB", "%.0f", func(f fleetFigures) float64 { return f.idle })
	row(fmt.Sprintf("memory after loading %d works, MiB", z.all()), "%.0f", func(f fleetFigures) float64 { return f.loaded })
	row("its peak, MiB", "%.0f", func(f fleetFigures) float64 { return f.peak })
	row("memory some time later, MiB", "%.0f", func(f fleetFigures) float64 { return f.later })
	for _, a := range allArrivals {
		row(a.name+": all in sync, s", "%.1f", func(f fleetFigures) float64 { return a.of(f).last.Seconds() })
		row(a.name+": median agent, s", "%.1f", func(f fleetFigures) float64 { return a.of(f).median.Seconds() })
		row(a.name+": processor, s", "%.1f", func(f fleetFigures) float64 { return a.of(f).cpu })
		row(a.name+": processor per agent, ms", "%.2f", func(f fleetFigures) float64 { return a.of(f).per(z.agents).cpu * 1000 })
		row(a.name+": allocations per agent", "%.0f", func(f fleetFigures) float64 { return a.of(f).per(z.agents).allocs })
	}
	row("processor at rest, % of one", "%.1f", func(f fleetFigures) float64 { return 100 * f.rest })
	row("memory at rest, MiB", "%.0f", func(f fleetFigures) float64 { return f.sessions })
	for i, clusters := range updatedClusters {
		row(fmt.Sprintf("update in each of %d clusters p50, ms", min(clusters, z.agents)), "%.1f", func(f fleetFigures) float64 { return f.updated[i].p50.median() })
		row("the same p99, ms", "%.1f", func(f fleetFigures) float64 { return f.updated[i].p99.median() })
	}
	return rows
}

// allArrivals are the arrivals of the whole fleet that the part measures, in its order.
var allArrivals = []struct {
	name string
	of   func(fleetFigures) arrivals
}{
	{"cold start", func(f fleetFigures) arrivals { return f.cold }},
	{"restart after a kill", func(f fleetFigures) arrivals { return f.killed }},
	{"restart after SIGTERM", func(f fleetFigures) arrivals { return f.stopped }},
}

// fleetGoals returns the targets of the part.
func fleetGoals(before, now fleetFigures, z size) []goal {
	goals := []goal{{name: "processor per publish, now : before", got: now.publish.cpu / before.publish.cpu, want: 0.95, atMost: true}}
	for _, a := range allArrivals {
		b, n := a.of(before), a.of(now)
		goals = append(goals,
			goal{name: a.name + ", time, now : before", got: n.last.Seconds() / b.last.Seconds(), want: 0.9, atMost: true},
			goal{name: a.name + ", processor, now : before", got: n.cpu / b.cpu, want: 0.9, atMost: true},
			goal{name: a.name + ", last agent now : median agent before", got: n.last.Seconds() / b.median.Seconds(), want: lastToMedian, atMost: true},
		)
	}
	most := updatedClusters[len(updatedClusters)-1]
	return append(goals,
		goal{name: "processor per agent that returns after a kill, ms", got: now.killed.per(z.agents).cpu * 1000, want: perReturning, atMost: true},
		goal{name: "processor per agent that returns after SIGTERM, ms", got: now.stopped.per(z.agents).cpu * 1000, want: perReturning, atMost: true},
		goal{name: fmt.Sprintf("update in each of %d clusters p99, ms", min(most, z.agents)), got: now.updated[len(updatedClusters)-1].p99.median(), want: updatedWithin, atMost: true},
	)
}
