package histories

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/taskgroup"
)

const (
	// calm is the longest time without a fault. shortest and longest bound a fault that lasts.
	calm, shortest, longest = 3 * time.Second, time.Second, 6 * time.Second
	// patience is the time in which everything must work again after a fault.
	patience = 90 * time.Second
)

// fault is one kind of fault. do returns when the fault has ended.
type fault struct {
	name string
	do   func(ctx context.Context, f *fleet)
}

// faults are all kinds. A run begins with each of them once, in random order.
var faults = []fault{
	{"a broker is killed", func(_ context.Context, f *fleet) { f.anyReplica().signal(syscall.SIGKILL) }},
	{"a broker is stopped", func(_ context.Context, f *fleet) { f.anyReplica().signal(syscall.SIGTERM) }},
	{"a broker is paused", func(ctx context.Context, f *fleet) {
		p := f.anyReplica().signal(syscall.SIGSTOP)
		f.last(ctx)
		if p != nil {
			_ = p.Signal(syscall.SIGCONT) // it may have been killed
		}
	}},
	{"a broker is cut off from its clients", func(ctx context.Context, f *fleet) { f.cutOff(ctx, f.anyReplica().front) }},
	{"a broker is cut off from the database", func(ctx context.Context, f *fleet) {
		p := f.anyReplica().databases
		f.cutOff(ctx, p[0], p[1])
	}},
	{"connections of a broker to the database end", func(_ context.Context, f *fleet) {
		p := f.anyReplica().databases
		p[0].reset()
		p[1].reset()
	}},
	{"the database is killed", func(_ context.Context, f *fleet) { f.database.kill() }},
	{"the database is restarted", func(_ context.Context, f *fleet) { f.database.restart() }},
	{"the database is paused", func(ctx context.Context, f *fleet) {
		s := f.database.servers[f.database.primary]
		f.database.check(s.Pause())
		f.last(ctx)
		f.database.check(s.Resume())
	}},
	{"failover to a synchronous standby", func(_ context.Context, f *fleet) { f.database.failOver(false) }},
	{"failover to an asynchronous standby", func(_ context.Context, f *fleet) { f.database.failOver(true) }},
}

// clientFaults are restarts of clients. They happen all the time, beside the faults.
var clientFaults = []fault{
	{"a source restarts", func(_ context.Context, f *fleet) { f.sources[rand.IntN(len(f.sources))].end() }},
	{"an agent restarts", func(_ context.Context, f *fleet) { f.agents[rand.IntN(len(f.agents))].begin(false) }},
	{"an agent restarts without its state", func(_ context.Context, f *fleet) { f.agents[rand.IntN(len(f.agents))].begin(true) }},
}

func (f *fleet) anyReplica() *replica { return f.replicas[rand.IntN(len(f.replicas))] }

// last waits for the end of a fault that lasts.
func (f *fleet) last(ctx context.Context) {
	taskgroup.Sleep(ctx, shortest+rand.N(longest-shortest))
}

func (f *fleet) cutOff(ctx context.Context, proxies ...*proxy) {
	for _, p := range proxies {
		p.cut()
	}
	f.last(ctx)
	for _, p := range proxies {
		p.heal()
	}
}

// storm causes faults until ctx ends, one after the other. After each of them all brokers must become ready.
func (f *fleet) storm(ctx context.Context, t *testing.T) {
	for first := true; ; first = false {
		for _, i := range rand.Perm(len(faults)) {
			if !first {
				i = rand.IntN(len(faults))
			}
			if !taskgroup.Sleep(ctx, rand.N(calm)) {
				return
			}
			f.trace.fault(t, faults[i].name)
			faults[i].do(ctx, f)
			f.trace.fault(t, "it ends")
			f.awaitReady(t)
			if t.Failed() {
				return
			}
		}
	}
}

// awaitReady waits until all brokers are ready.
func (f *fleet) awaitReady(t *testing.T) {
	t.Helper()
	f.until(t, func() string {
		for _, r := range f.replicas {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			err := r.checkReady(ctx)
			cancel()
			if err != nil {
				return err.Error()
			}
		}
		return ""
	})
}

// until waits until there is nothing to wait for. After the patience it is an error.
func (f *fleet) until(t *testing.T, what func() string) bool {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		w := what()
		if w == "" {
			return true
		}
		if time.Now().After(deadline) {
			t.Errorf("%s after a fault: %s", patience, w)
			return false
		}
	}
}

// restartClients restarts clients at a pace until ctx ends.
func (f *fleet) restartClients(ctx context.Context) error {
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			x := clientFaults[rand.IntN(len(clientFaults))]
			x.do(ctx, f)
		case <-ctx.Done():
			return nil
		}
	}
}

// names returns the names of sources.
func names(n int, format string) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf(format, i+1))
	}
	return list
}
