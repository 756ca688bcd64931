package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hawser-io/hawser/internal/local/fleet"
)

// faults injects the faults of the plan. Each program has faults of its own, so faults may overlap.
type faults struct {
	fleet  *fleet.Fleet
	plan   plan
	seed   uint64
	since  func() time.Duration
	printf func(format string, args ...any)
	// victim is killed during the whole run, the other programs only in storms.
	victim string

	mu    sync.Mutex
	count map[string]int
}

// run injects faults until the end of the plan. Then all programs run.
func (f *faults) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	part := func(name string, one func(context.Context, *rand.Rand) error) {
		r := random(f.seed, name)
		wg.Go(func() {
			for f.since() < f.plan.end && ctx.Err() == nil {
				if err := one(ctx, r); err != nil {
					cancel(fmt.Errorf("%s: %w", name, err))
				}
			}
		})
	}
	for _, name := range f.fleet.Programs() {
		part(name, func(ctx context.Context, r *rand.Rand) error { return f.program(ctx, r, name) })
	}
	part(hub, f.hub)
	wg.Wait()
	return context.Cause(ctx)
}

// hub is the name of the hub's control plane in the fleet.
const hub = "hub"

func (f *faults) program(ctx context.Context, r *rand.Rand, name string) error {
	e := nextFault(r)
	if !f.wait(ctx, e.after) || f.plan.quiet(f.since()) {
		return nil
	}
	if !f.plan.stormy(f.since()) && name != f.victim {
		e.fault = pause
	}
	p := f.fleet.Program(name)
	f.note(name, e)
	switch e.fault {
	case kill:
		p.Kill()
	case stop:
		if err := p.Stop(); err != nil {
			return err
		}
	default:
		if err := p.Pause(); err != nil {
			return err
		}
	}
	f.wait(ctx, e.last)
	if e.fault == pause {
		return p.Resume()
	}
	return p.Launch(context.WithoutCancel(ctx)) // without waiting, because the programs that it needs may be down
}

func (f *faults) hub(ctx context.Context, r *rand.Rand) error {
	e := nextRestart(r)
	if !f.wait(ctx, e.after) || f.plan.quiet(f.since()) {
		return nil
	}
	f.note(hub, e)
	if err := f.fleet.StopControlPlane(hub); err != nil {
		return err
	}
	f.wait(ctx, e.last)
	return f.fleet.StartControlPlane(hub)
}

// wait waits for a duration. It returns false if the plan or ctx ends before.
func (f *faults) wait(ctx context.Context, d time.Duration) bool {
	d = min(d, f.plan.end-f.since())
	select {
	case <-time.After(d):
		return f.since() < f.plan.end
	case <-ctx.Done():
		return false
	}
}

func (f *faults) note(part string, e event) {
	f.printf("%s: %s for %.1f s", part, e.fault, e.last.Seconds())
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count[fmt.Sprintf("%s %s", part, e.fault)]++
}
