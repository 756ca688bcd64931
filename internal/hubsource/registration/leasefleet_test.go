package registration

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/ocm"
)

// leaseFleet is 10,000 agents that renew every 1 to 1.25 periods, the broker that reports each renewal within a
// second, and the Leases on the hub.
type leaseFleet struct {
	*testing.T
	random *rand.Rand
	period time.Duration
	now    time.Time
	r      renewals
	agents []leaseAgent
	byName map[string]*leaseAgent
	// reported is whether the broker has a session with hub-source.
	reported bool
	writes   []time.Time
	// latest is the longest time between a renewal and its write.
	latest time.Duration
}

type leaseAgent struct {
	name                   string
	renewed, next, written time.Time
	silent                 bool
	// pending: the broker has to report the last renewal.
	pending bool
}

func newLeaseFleet(t *testing.T, n int, period time.Duration) *leaseFleet {
	f := &leaseFleet{T: t, random: rand.New(rand.NewPCG(27, 6)), period: period, now: time.Unix(1e9, 0), byName: map[string]*leaseAgent{}, reported: true}
	f.agents = make([]leaseAgent, n)
	for i := range f.agents {
		a := &f.agents[i]
		pause := f.pause()
		a.name, a.renewed = fmt.Sprint("c", i), f.now.Add(-time.Duration(f.random.Float64()*float64(pause)))
		a.next = a.renewed.Add(pause)
		if a.written = a.renewed; i%2 == 0 {
			a.written = a.renewed.Add(-f.pause())
		}
		a.pending = true
		f.byName[a.name] = a
	}
	return f
}

// pause is the time between two renewals of an agent.
func (f *leaseFleet) pause() time.Duration {
	return f.period + time.Duration(f.random.Float64()*float64(f.period)/4)
}

// pass lets time pass in steps of a second: the agents renew, the broker reports, and the writers write.
func (f *leaseFleet) pass(d time.Duration) {
	for end := f.now.Add(d); f.now.Before(end); {
		second := f.now.Add(time.Second)
		for i := range f.agents {
			a := &f.agents[i]
			if !a.silent && !a.next.After(f.now) {
				a.renewed, a.pending, a.next = a.next, true, a.next.Add(f.pause())
			}
			if a.pending && f.reported {
				f.r.renew(f.now, a.name, a.renewed, a.written, f.period)
				a.pending = false
			}
		}
		for f.now.Before(second) {
			cluster, renewed, wait, ok := f.r.next(f.now)
			if ok {
				f.write(f.byName[cluster], renewed)
				continue
			}
			if wait <= 0 {
				wait = time.Second
			}
			f.now = f.now.Add(min(wait, second.Sub(f.now)))
		}
	}
}

// write writes a Lease. A renewal that comes when the hub has declared a cluster disconnected is an error: with
// every renewal written, it would have come before.
func (f *leaseFleet) write(a *leaseAgent, renewed time.Time) {
	if f.now.Sub(a.written) >= ocm.MissedPeriods*f.period {
		f.Fatalf("%s: the hub declared it disconnected at %v, and its renewal of %v comes %v later", a.name, a.written.Add(ocm.MissedPeriods*f.period), renewed, f.now.Sub(a.written))
	}
	f.latest = max(f.latest, f.now.Sub(renewed))
	a.written = renewed
	f.writes = append(f.writes, f.now)
}

// restart is another replica as the leader. The broker repeats the last renewals.
func (f *leaseFleet) restart() {
	f.r = renewals{}
	for i := range f.agents {
		f.agents[i].pending = true
	}
}

// most returns the most writes in any second.
func (f *leaseFleet) most() (most int) {
	slices.SortFunc(f.writes, time.Time.Compare)
	for from, to := 0, 0; to < len(f.writes); to++ {
		for f.writes[to].Sub(f.writes[from]) >= time.Second {
			from++
		}
		most = max(most, to-from+1)
	}
	return most
}

// silence makes each nth agent silent.
func (f *leaseFleet) silence(n int) {
	for i := 0; i < len(f.agents); i += n {
		f.agents[i].silent = true
	}
}

// exact fails unless the hub has the last renewal of each silent agent, so that its five periods end at the same
// moment as if every renewal was written.
func (f *leaseFleet) exact() {
	f.Helper()
	for _, a := range f.agents {
		if a.silent && !a.written.Equal(a.renewed) {
			f.Fatalf("%s: renewed at %v, the hub has %v", a.name, a.renewed, a.written)
		}
	}
}

// catchingUp is the most writes in a second if many Leases are late after an outage.
const catchingUp = 10_000/30 + fewestWrites

// The Leases of 10,000 clusters need at most 85 writes in any second. The hub knows the last renewal of each silent
// agent before the five periods end.
func TestRenewals_Fleet(t *testing.T) {
	for _, c := range []struct {
		name   string
		most   int // writes in any second
		latest time.Duration
		during func(f *leaseFleet)
	}{
		{"at rest", 85, 2 * time.Minute, func(f *leaseFleet) { f.pass(10 * time.Minute) }},
		{"some agents fall silent", 85, 2 * time.Minute, func(f *leaseFleet) {
			for n := range 20 {
				f.silence(1000 - n)
				f.pass(17 * time.Second)
			}
		}},
		{"most agents fall silent", 85, 2 * time.Minute, func(f *leaseFleet) { f.silence(1) }},
		{"another leader", 85, 2 * time.Minute, func(f *leaseFleet) {
			f.restart()
			f.silence(7)
			f.pass(time.Minute)
			f.restart()
		}},
		{"the session with the broker ends for a while", catchingUp, 3 * time.Minute, func(f *leaseFleet) {
			f.reported = false
			f.r.hasten(f.now)
			f.pass(130 * time.Second)
			f.reported = true
			f.silence(7)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newLeaseFleet(t, 10_000, time.Minute)
			f.pass(5 * time.Minute)
			c.during(f)
			f.pass(210 * time.Second) // before five periods end
			f.exact()
			if most := f.most(); most > c.most || f.latest > c.latest {
				t.Errorf("%d writes in one second; one came %v after its renewal", most, f.latest)
			}
		})
	}
}

// A session with the broker that ended leaves the last renewal of each agent on the hub.
func TestRenewals_FleetWithoutBroker(t *testing.T) {
	f := newLeaseFleet(t, 10_000, time.Minute)
	f.pass(5 * time.Minute)
	f.silence(1)
	f.pass(time.Second) // the broker has reported
	f.reported = false
	f.r.hasten(f.now)
	f.pass(75 * time.Second)
	f.exact()
	if most := f.most(); most > 85 {
		t.Errorf("%d writes in one second", most)
	}
}
