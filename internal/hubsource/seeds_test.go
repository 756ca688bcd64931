package hubsource

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/hubsource/core"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit/admincall"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// The test runs two replicas of the real source, with their informers, on a fakeHub and a real broker. A seed
// determines the actions of users and the faults. After the last fault, hub and broker have to agree. The test
// observes the source from outside only. Unlike in test/sim, goroutines run freely, so a seed need not give the
// same run each time.

// The environment variables of TestSource_ConvergesAfterAnyEvents, as in test/sim.
const (
	envSeed  = "SEED"  // plays this seed and prints the steps
	envFirst = "FIRST" // the first seed, 1 by default
	envTime  = "TIME"  // plays as many seeds as fit into this duration
)

// seedsTime is the time for playing seeds, leastPlayed the minimum number of seeds.
const (
	seedsTime   = 8 * time.Second
	leastPlayed = 10
)

var playedClusters, playedNames = []string{"c1", "c2"}, []string{"a", "b", "c"}

// play is one seed.
type play struct {
	*bench
	rng      *rand.Rand
	seed     uint64
	replicas []*replica
	agents   map[string]*fakeAgent
	epoch    int
	backup   *hubCopy
	lines    []string

	// The hub's lock guards these.
	troubles int             // number of writes that will still fail
	deleted  map[string]bool // uids of deleted works, or of works that may be deleted
}

type hubCopy struct {
	restore func()
	version int
}

// replica is a process that may lead. It is started again when it ends.
type replica struct {
	*running
	name string
	cut  bool // the replica cannot reach the hub; guarded by the hub's lock
}

// newPlay starts the hub, the agents and the replicas.
func newPlay(b *bench, seed uint64) *play {
	p := &play{bench: b, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), agents: map[string]*fakeAgent{}, deleted: map[string]bool{}}
	for _, c := range playedClusters {
		a := b.agent(c)
		a.mu.Lock()
		a.received = func(uid string) { p.wasNotified(c, uid) }
		a.mu.Unlock()
		p.agents[c] = a
	}
	b.hub.mu.Lock()
	b.hub.faults.endsWork, b.hub.faults.writes = p.endsWork, p.fault
	b.hub.mu.Unlock()
	for _, name := range []string{"first", "second"} {
		p.replicas = append(p.replicas, &replica{name: name})
	}
	p.restart()
	return p
}

// restart restarts the replicas that have ended.
func (p *play) restart() {
	for _, r := range p.replicas {
		if r.running != nil {
			select {
			case <-r.ended:
			default:
				continue
			}
		}
		r.running = p.source(elected(p.bench, r.name, &r.cut), func(c *Config) { p.through(c, &r.cut) })
	}
}

// through connects a replica to the hub so that the connection can be cut.
func (p *play) through(c *Config, cut *bool) {
	cfg := p.hub.config()
	cfg.Transport = cuttable{p.hub, cut}
	c.Works, c.Metadata, c.ConfigMaps = clientsOf(cfg)
}

func (p *play) note(format string, args ...any) {
	p.lines = append(p.lines, fmt.Sprintf(format, args...))
}

// fault returns the fault of a write; the caller holds the hub's lock.
func (p *play) fault() fault {
	if p.troubles == 0 {
		return noFault
	}
	p.troubles--
	return fault(1 + p.troubles%3)
}

// endsWork fails if the finalizer of a work is removed while its cluster has objects of the work. The caller
// holds the hub's lock.
func (p *play) endsWork(cluster, uid string) {
	if p.agents[cluster].isApplied(uid) {
		p.Errorf("seed %d: %s is let go, and cluster %s has it", p.seed, uid, cluster)
	}
}

// wasNotified checks a deletion that a cluster received.
func (p *play) wasNotified(cluster, uid string) {
	p.hub.mu.Lock()
	defer p.hub.mu.Unlock()
	if !p.deleted[uid] {
		p.Errorf("seed %d: cluster %s received the deletion of %s, which was not deleted", p.seed, cluster, uid)
	}
}

// doom records that a work is deleted.
func (p *play) doom(uid string) {
	p.hub.mu.Lock()
	defer p.hub.mu.Unlock()
	p.deleted[uid] = true
}

// playStep is one action of a user, or one fault. do returns what it did, "" if it was not possible.
type playStep struct {
	name   string
	weight int
	do     func(p *play) string
}

var playSteps = []playStep{
	{"apply", 12, func(p *play) string {
		key := p.anyKey()
		cluster, name, _ := strings.Cut(key, "/")
		if w := p.hub.work(key); w != nil && w.DeletionTimestamp != nil {
			return ""
		}
		p.hub.apply(example(cluster, name, data(fmt.Sprint("v", p.rng.IntN(1000)))))
		return key
	}},
	{"label", 3, func(p *play) string {
		key := p.anyKey()
		w := p.hub.work(key)
		if w == nil || w.DeletionTimestamp != nil {
			return ""
		}
		w.Labels = map[string]string{"l": fmt.Sprint(p.rng.IntN(1000))}
		p.hub.apply(w)
		return key
	}},
	{"remove", 6, func(p *play) string {
		key := p.anyKey()
		w := p.hub.work(key)
		if w == nil {
			return ""
		}
		p.doom(string(w.UID))
		p.hub.remove("manifestworks", key)
		return key
	}},
	{"tear", 1, func(p *play) string {
		key := p.anyKey()
		w := p.hub.work(key)
		if w == nil {
			return ""
		}
		p.doom(string(w.UID))
		p.hub.tear(key)
		return key
	}},
	{"back up", 4, (*play).backUp},
	{"restore", 4, (*play).restore},
	{"hub is down", 2, func(p *play) string {
		p.hub.setDown(true)
		p.pass(20 * time.Second)
		p.hub.setDown(false)
		return "for a while"
	}},
	{"writes go wrong", 6, func(p *play) string {
		p.hub.mu.Lock()
		defer p.hub.mu.Unlock()
		p.troubles = 1 + p.rng.IntN(6)
		return fmt.Sprint(p.troubles)
	}},
	{"watches end", 3, func(p *play) string { p.hub.cutWatches(); return "all" }},
	{"informers lag", 4, func(p *play) string { p.hub.fallBehind(); return "from now on" }},
	{"informers catch up", 5, func(p *play) string { p.hub.catchUp(); return "all" }},
	{"a replica ends", 4, func(p *play) string {
		r := p.replicas[p.rng.IntN(2)]
		if err := r.stop(); err != nil {
			p.note("%v", err)
		}
		if p.rng.IntN(2) == 0 {
			p.pass(5 * time.Second) // the other replica leads
		}
		return r.name
	}},
	{"a replica is cut from the hub", 3, func(p *play) string { return p.cutOff(p.replicas[p.rng.IntN(2)]) }},
	{"sources are cut from the broker", 4, func(p *play) string {
		for _, r := range p.replicas {
			r.dialer.Cut()
		}
		p.pass(3 * time.Second)
		for _, r := range p.replicas {
			r.dialer.Restore()
		}
		return "for a while"
	}},
	{"an agent is cut off", 3, func(p *play) string {
		c := playedClusters[p.rng.IntN(len(playedClusters))]
		p.agents[c].dialer.Cut()
		return c
	}},
	{"agents come back", 4, func(p *play) string { p.joinAgents(); return "all" }},
	{"wait", 8, func(p *play) string { return p.pass(2 * time.Minute) }},
}

func (p *play) anyKey() string {
	return playedClusters[p.rng.IntN(len(playedClusters))] + "/" + playedNames[p.rng.IntN(len(playedNames))]
}

// pass lets some time pass, up to a bound.
func (p *play) pass(longest time.Duration) string {
	d := time.Duration(p.rng.Int64N(int64(longest)))
	p.settle(d)
	return d.String()
}

// backUp copies the hub. Then the hub gets many writes besides works, so that a restored hub needs some time to
// reach its former position.
func (p *play) backUp() string {
	restore := p.hub.backUp()
	p.hub.mu.Lock()
	defer p.hub.mu.Unlock()
	p.backup = &hubCopy{restore, p.hub.rv}
	p.hub.rv += 1 << (50 - 8*min(p.epoch, 5))
	return fmt.Sprint("at ", p.backup.version)
}

// restore replaces the hub with the copy, if the broker knows of a later state. Otherwise no part could detect
// the rollback once both replicas have ended.
func (p *play) restore() string {
	if p.backup == nil || p.known() <= p.backup.version {
		return ""
	}
	p.backup.restore()
	p.epoch++
	p.backup = nil
	return "done"
}

// known returns the position of the hub that the broker knows.
func (p *play) known() int {
	var position struct {
		ResourceVersion int `json:"resourceVersion,string"`
	}
	for _, value := range p.broker.Store.Bookmarks("hub/hub") {
		if err := json.Unmarshal(value, &position); err != nil {
			p.Fatal(err)
		}
	}
	return position.ResourceVersion
}

// cutOff cuts a replica from the hub, for long enough that it may lose the Lease.
func (p *play) cutOff(r *replica) string {
	p.setCut(r, true)
	d := p.pass(30 * time.Second)
	p.setCut(r, false)
	return r.name + " for " + d
}

func (p *play) setCut(r *replica, cut bool) {
	p.hub.mu.Lock()
	defer p.hub.mu.Unlock()
	r.cut = cut
}

func (p *play) joinAgents() {
	for _, a := range p.agents {
		a.dialer.Restore()
	}
}

// run plays the seed.
func (p *play) run() {
	total := 0
	for _, s := range playSteps {
		total += s.weight
	}
	for range 8 + p.rng.IntN(40) {
		n := p.rng.IntN(total)
		i := slices.IndexFunc(playSteps, func(s playStep) bool { n -= s.weight; return n < 0 })
		p.note("%s: %s", playSteps[i].name, playSteps[i].do(p))
		p.restart()
		p.pass(2 * time.Second)
		if p.Failed() {
			break
		}
	}
	p.hub.mu.Lock()
	p.troubles = 0
	p.hub.mu.Unlock()
	p.hub.catchUp()
	p.joinAgents()
	p.note("all is well again")
	p.settle(5 * time.Minute)
	for i := 0; i < 4 && p.approve() > 0; i++ {
		p.settle(5 * time.Minute)
	}
	p.check()
}

// approve approves all withheld deletions.
func (p *play) approve() int {
	withheld := map[string][]*hawserv1.WithheldDeletion{}
	n := 0
	err := p.broker.ListDiscrepancies(&hawserv1.ListDiscrepanciesRequest{}, admincall.To(context.Background(), func(o *hawserv1.ListDiscrepanciesResponse) error {
		if o.GetCause() == hawserv1.DiscrepancyCause_DISCREPANCY_CAUSE_WITHHELD {
			p.doom(o.GetResourceId())
			n++
			withheld[o.GetCluster()] = append(withheld[o.GetCluster()], &hawserv1.WithheldDeletion{ResourceId: o.GetResourceId(), Name: o.GetName(), Revision: o.GetRevision()})
		}
		return nil
	}))
	for c, works := range withheld {
		if err == nil {
			_, err = p.broker.Approve(admincall.By(context.Background(), identity.Identity{Role: identity.Operator, Name: "op"}), &hawserv1.ApproveRequest{Source: "hub", Cluster: c, Works: works})
		}
	}
	if err != nil {
		p.Errorf("approve: %v", err)
	}
	p.note("%d deletions are approved", n)
	return n
}

// check compares hub and broker.
func (p *play) check() {
	records := map[string]store.Meta{}
	err := p.broker.Store.Scan(context.Background(), store.Scope{DataType: codec.ManifestBundles}, func(m store.Meta) error {
		switch m.State {
		case store.Live:
			records[m.ResourceID] = m
		case store.Tombstone:
			p.Errorf("seed %d: the deletion of %s/%s %s is not confirmed", p.seed, m.Cluster, m.Name, m.ResourceID)
		case store.ConfirmedTombstone:
		}
		return nil
	})
	if err != nil {
		p.Fatal(err)
	}
	for _, c := range playedClusters {
		for _, name := range playedNames {
			if w := p.hub.work(c + "/" + name); w != nil {
				p.checkWork(w, records)
			}
		}
	}
	for id, m := range records {
		p.Errorf("seed %d: the broker has %s/%s %s, and the hub does not", p.seed, m.Cluster, m.Name, id)
	}
	p.checkAgents()
}

func (p *play) checkWork(w *workv1.ManifestWork, records map[string]store.Meta) {
	m, has := records[string(w.UID)]
	delete(records, string(w.UID))
	tag, err := manifestwork.SpecTag(w)
	switch {
	case err != nil:
		p.Fatal(err)
	case w.DeletionTimestamp != nil:
		p.Errorf("seed %d: %s/%s %s is still being deleted", p.seed, w.Namespace, w.Name, w.UID)
	case !has || m.Tag != tag:
		p.Errorf("seed %d: the broker has of %s/%s %s %+v, the hub has generation %d", p.seed, w.Namespace, w.Name, w.UID, m, w.Generation)
	case !hasFinalizer(w):
		p.Errorf("seed %d: %s/%s has no finalizer", p.seed, w.Namespace, w.Name)
	default:
		p.checkStatus(w, m.Key)
	}
}

// checkStatus fails unless the hub shows the broker's status of a work.
func (p *play) checkStatus(w *workv1.ManifestWork, k store.Key) {
	record, err := p.broker.Store.Get(context.Background(), k)
	if err != nil {
		p.Fatal(err)
	}
	e, err := codec.Unmarshal(record.Status)
	if err != nil {
		p.Fatalf("%s: %v", k.ResourceID, err)
	}
	reported, err := core.ReportOf(e)
	if err != nil {
		p.Fatal(err)
	}
	if shows := slices.DeleteFunc(slices.Clone(w.Status.Conditions), func(c metav1.Condition) bool {
		return c.Type == core.ConditionDelivered && c.Status == metav1.ConditionTrue
	}); !apiequality.Semantic.DeepEqual(shows, reported.Status.Conditions) || reported.Version != w.Generation {
		p.Errorf("seed %d: the hub shows of %s/%s at generation %d %+v, the broker has %+v", p.seed, w.Namespace, w.Name, w.Generation, shows, reported)
	}
}

// checkAgents fails unless each cluster has exactly the works of the hub.
func (p *play) checkAgents() {
	for c, a := range p.agents {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, name := range playedNames {
			w, held := p.hub.work(c+"/"+name), a.held[name]
			if (w != nil) != (held != nil) || w != nil && (string(w.UID) != held.ResourceID || w.Generation != held.Generation) {
				p.Errorf("seed %d: cluster %s has of %s %+v", p.seed, c, name, held)
			}
		}
	}
}

func TestSource_ConvergesAfterAnyEvents(t *testing.T) {
	first, seeds, end := uint64(1), uint64(leastPlayed), time.Now().Add(seedsTime)
	one := os.Getenv(envSeed) != ""
	if text := os.Getenv(envTime); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatalf("%s: %v", envTime, err)
		}
		end = time.Now().Add(d)
	}
	for _, name := range []string{envFirst, envSeed} {
		if text := os.Getenv(name); text != "" {
			n, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			first = n
		}
	}
	if one {
		seeds, end = 1, time.Now()
	}
	n := uint64(0)
	for ; !t.Failed() && (n < seeds || time.Now().Before(end)); n++ {
		inBubble(t, func(b *bench) {
			p := newPlay(b, first+n)
			p.run()
			if t.Failed() || one {
				b.Logf("seed %d:\n%s", p.seed, strings.Join(p.lines, "\n"))
			}
		})
	}
	t.Logf("%d seeds from %d on", n, first)
}
