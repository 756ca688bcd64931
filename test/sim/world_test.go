package sim

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

// clusters are the managed clusters; the last has an OCM agent.
var clusters = []string{"c1", "c2", "c3"}

// agentlessCluster is a cluster without an agent.
const agentlessCluster = "c4"

// world is the whole simulated world.
type world struct {
	seed   uint64
	rng    *rand.Rand // draws the random events of the world
	spoken *rand.Rand // draws the clients that use MQTT; a source of its own, so that all other draws stay the same
	lines  []string   // what happened
	broken *violation
	ids    atomic.Int64

	oracle    *oracle
	shape     *shape
	broker    *node
	replicas  []*node          // broker is the first of them
	database  *mem.Store       // that several replicas share; nil: each start opens its own
	stateless *statelessBroker // instead of broker; nil: there is none
	join      *join            // instead of everything else; nil: there is none
	hub       *hub
	source    *source
	shop      *ocmSource
	agents    []*agentNode
	former    []*agentNode // of clusters that were replaced, and still run
	ocmAgent  *ocmAgent
	fakes     map[string]*clustertest.Fake

	links        []*link
	calls        []*call
	late         []*late
	ghosts       []*conn // ended for their clients, not yet for the broker
	conns        uint64
	list         []step // of steps, kept to reuse its memory
	replacements int
	others       bool // the present change on a cluster is made by another user
	// ranks are the priorities of steps by kind; nil: each step is random. ranker draws them for kinds that have
	// none yet.
	ranks  map[string]uint32
	ranker *rand.Rand
}

// violation is a broken invariant.
type violation struct {
	invariant, what string
}

func (v *violation) String() string { return v.invariant + ": " + v.what }

// step is a possible next event.
type step struct {
	actor, what, about string // its name; put together only when the step is performed
	do                 func()
}

func (s *step) String() string { return strings.TrimRight(s.actor+" "+s.what+" "+s.about, " ") }

// later is the time between the start of a bubble's clock and the present: sequence ids have no time before
// 2010.
const later = 26 * 365 * 24 * time.Hour

// startTime is the shortest time in which a process ends and starts again.
const startTime = 50 * time.Millisecond

func newWorld(seed uint64, k *shape) *world {
	<-time.After(later)
	w := &world{seed: seed, shape: k, rng: rand.New(rand.NewPCG(seed, 2)), spoken: rand.New(rand.NewPCG(seed, 9)), fakes: map[string]*clustertest.Fake{}}
	w.oracle = newOracle(w)
	w.startBrokers() // unused if there is a stateless broker
	if k.stateless {
		w.stateless = newStatelessBroker(w)
	}
	w.hub = &hub{w: w, works: map[string]*workv1.ManifestWork{}, generations: map[generation]int{}, rv: 100, born: &hubBackup{rv: 100}}
	w.newCluster(agentlessCluster)
	w.source = newSource(w, w.hub)
	w.shop = newShop(w)
	for _, name := range clusters[:2] {
		a := newAgent(w, name, 0)
		if name == clusters[0] || w.rng.IntN(2) == 0 {
			a.dir = newStateDir()
		}
		w.agents = append(w.agents, a)
		a.start()
	}
	w.ocmAgent = newOCMAgent(w, "c3")
	return w
}

// jitter returns the random source of a client. A number follows from the present time and not from the number
// of calls. That number may depend on the iteration order of a map.
func (w *world) jitter(client string) func() float64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(client))
	return func() float64 {
		return rand.New(rand.NewPCG(w.seed^h.Sum64(), uint64(time.Now().UnixNano()))).Float64()
	}
}

func (w *world) newID() string { return fmt.Sprintf("e-%d", w.ids.Add(1)) }

func (w *world) note(format string, args ...any) {
	w.lines = append(w.lines, fmt.Sprintf(format, args...))
}

// fail records the first violation; the run ends with the step.
func (w *world) fail(invariant, format string, args ...any) {
	v := &violation{invariant, fmt.Sprintf(format, args...)}
	w.note("  VIOLATION %s", v)
	if w.broken == nil {
		w.broken = v
	}
}

// steps returns the possible steps, in a fixed order. The list is valid until the next call.
func (w *world) steps() []step {
	list := w.list[:0]
	for _, n := range w.replicas {
		list = n.steps(list)
	}
	list = w.callSteps(list)
	if w.stateless != nil {
		list = w.stateless.steps(list)
	}
	for _, l := range w.links {
		list = l.steps(list)
	}
	list = w.shop.steps(w.source.steps(list))
	for _, a := range w.everyAgent() {
		list = a.steps(list)
	}
	w.list = w.ocmAgent.steps(list)
	return w.list
}

// due returns the due keys, sorted.
func due(m map[string]time.Time, now time.Time) []string {
	var keys []string
	for key, at := range m {
		if !at.After(now) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// perform performs a step and waits until all goroutines are idle.
func (w *world) perform(s step) {
	w.lines = append(w.lines, s.String())
	s.do()
	synctest.Wait()
}

// pass lets time pass. Informers that start, or whose hub went back, complete their list within listedWithin,
// even if they are stopped.
func (w *world) pass(d time.Duration) {
	if s := w.source; s != nil && time.Since(s.late())+d > listedWithin {
		for s.missing() {
			s.watch()
		}
	}
	w.answerOCM(time.Now().Add(d))
	<-time.After(d)
	synctest.Wait()
}

// next returns when the next action is due, zero if there is none.
func (w *world) next() (first time.Time) {
	times := []time.Time{w.source.next(), w.shop.next(), w.ocmAgent.next()}
	for _, a := range w.everyAgent() {
		times = append(times, a.next())
	}
	for _, l := range w.links {
		if l.conn == nil {
			times = append(times, l.redial)
		}
	}
	for _, c := range w.calls {
		if !c.arrived {
			times = append(times, c.notBefore)
		}
	}
	if w.stateless != nil {
		for _, p := range w.stateless.late {
			times = append(times, p.at)
		}
	}
	for _, t := range times {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}

// heal ends all faults.
func (w *world) heal() {
	w.hub.down, w.source.unresponsive, w.source.blind, w.source.standby = false, false, false, nil
	for _, a := range w.agents {
		a.down, a.budget = false, -1
		if a.dir != nil {
			a.dir.full = false
		}
	}
	for _, l := range w.links {
		l.cut, l.slow = false, false
	}
	if w.stateless != nil {
		w.stateless.heal()
	}
	for _, n := range w.replicas {
		n.hung = false
		n.disk.Store(diskAmple)
		if !n.up {
			n.start()
		}
	}
	w.reap()
	synctest.Wait()
}

// Bounds of settle. They are longer than every back-off and grace period, and shorter than the hour after which
// agents read everything again.
const (
	settleTime  = 20 * time.Minute
	settleSteps = 20000
	// statelessSettleTime: what a stateless broker lost is sent again within 30 minutes. Follow-up events come
	// within another 30 minutes.
	statelessSettleTime = 100 * time.Minute
)

// settle ends the faults and performs all possible steps.
func (w *world) settle(order *rand.Rand) {
	w.heal()
	w.rest(order, w.settles())
}

// rest performs all possible steps within a time.
func (w *world) rest(order *rand.Rand, within time.Duration) {
	end := time.Now().Add(within)
	for n := 0; w.broken == nil; n++ {
		list := w.steps()
		switch {
		case n > settleSteps:
			w.fail("I1", "it does not come to rest: %s goes on", &list[0])
		case len(list) > 0:
			w.perform(list[order.IntN(len(list))])
		case !time.Now().Before(end):
			return
		default:
			wait := 30 * time.Second
			if t := w.next(); !t.IsZero() {
				wait = min(wait, max(time.Until(t), time.Millisecond))
			}
			w.pass(wait)
		}
	}
}

const (
	// listedWithin is the longest time that informers need for a list, when they start or after a hub went back.
	listedWithin = 20 * time.Second
	// evictionGrace is much longer than listedWithin, as everywhere: an agent accepts no grace period of zero.
	// Within it, a leader whose informers lagged publishes the works that it lacked when it reported the cluster as
	// synced.
	evictionGrace = time.Minute
)

// aroundTime is longer than every back-off.
const aroundTime = 6 * time.Minute

// settleAround lets everything happen that is possible around stuck clients and half-open connections. Stuck
// clients are agents that do not read, are cut off or cannot reach their clusters. Then the other clusters must
// have their objects. It does nothing while a shared component has a fault.
func (w *world) settleAround(order *rand.Rand) string {
	stuck := map[string]bool{}
	for _, l := range w.links {
		switch broken := l.cut || l.slow; {
		case w.replaced(l):
		case broken && l.id.Role == identity.Source:
			return ""
		case broken:
			stuck[l.id.Name] = true
		}
	}
	for _, a := range w.agents {
		if a.down {
			stuck[a.name] = true
		}
	}
	if len(stuck) == 0 || w.hub.down || w.source.blind || slices.ContainsFunc(w.replicas, func(n *node) bool { return !n.up || n.hung || n.disk.Load() != diskAmple }) {
		return ""
	}
	// An OCM source may have abandoned a create on a half-open connection. If it arrives long after its deletion,
	// it creates the work again. No receiver could detect that.
	w.calls = slices.DeleteFunc(w.calls, func(c *call) bool { return c.done == nil && !c.arrived && c.conn.link == w.shop.link })
	w.rest(order, aroundTime)
	if w.broken != nil || w.source.core.Stats().WithheldWorks > 0 || w.ocmAgent.confused || len(w.quarantined()) > 0 {
		return "without a look" // an operator has to decide first
	}
	for _, c := range clusters {
		if !stuck[c] {
			w.checkCluster(c, "I6")
		}
	}
	return fmt.Sprint(len(stuck), " clusters")
}

// settleAll settles, lets an operator decide, and settles again.
func (w *world) settleAll(order *rand.Rand) {
	w.settle(order)
	if w.ocmAgent.confused {
		w.note("> the OCM agent restarts")
		w.ocmAgent.confused = false
		w.ocmAgent.restart()
		w.settle(order)
	}
	cut := false
	for range 6 {
		if w.broken != nil {
			return
		}
		did := w.approve() + w.letIn()
		if did == "" && w.stateless == nil && w.source.core.Hello().Cursor != w.source.sent && !cut {
			did, cut = "cut", true // until then the cursor waits for an answer to a lost list
			w.source.link.dropIfAny("cut")
		}
		if did == "" {
			return
		}
		w.note("> an operator decides: %s", did)
		w.settle(order)
	}
}

// close ends everything.
func (w *world) close() {
	for _, n := range w.replicas {
		if n.up {
			n.crash(false)
		}
		w.cutAll(n)
	}
	synctest.Wait()
}

func unavailableHub() error { return apierrors.NewServiceUnavailable("the answer was lost") }
