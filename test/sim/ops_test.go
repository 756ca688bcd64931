package sim

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit/admincall"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// op is one line of a script. Its effect depends on the state of the world: a and b choose among the possible
// effects. So a script stays valid when ops are removed from it.
type op struct {
	name string
	a, b uint32
}

func (o op) String() string { return fmt.Sprintf("%s %d %d", o.name, o.a, o.b) }

// operation is a kind of op. do returns a description of its effect, "" if it was not possible.
type operation struct {
	name   string
	weight int
	do     func(w *world, a, b uint32) string
}

// operations are all kinds of op. A new operation is a new row.
var operations = []operation{
	{"run", 120, run},
	{"prefer", 12, prefer},
	{"run until", 40, runUntil},
	{"wait", 15, wait},
	{"settle", 4, func(w *world, a, _ uint32) string {
		w.settle(rand.New(rand.NewPCG(uint64(a), 3)))
		return "until nothing moves"
	}},

	{"settle around the stuck", 6, func(w *world, a, _ uint32) string {
		return w.settleAround(rand.New(rand.NewPCG(uint64(a), 6)))
	}},

	{"hub create", 12, func(w *world, a, b uint32) string {
		return nameOf(w.hub.create(clusters[a%3], hubNames[a/3%uint32(len(hubNames))], b))
	}},
	{"hub create without an agent", 4, func(w *world, a, b uint32) string {
		return nameOf(w.hub.create(agentlessCluster, hubNames[a%uint32(len(hubNames))], b))
	}},
	{"hub update", 14, onHub(func(w *world, key string, b uint32) { w.hub.update(key, b) })},
	{"hub burst", 4, func(w *world, _, b uint32) string {
		n := 0
		for _, key := range w.hub.keys() {
			if w.hub.works[key].DeletionTimestamp == nil {
				w.hub.update(key, b+uint32(n))
				n++
			}
		}
		if n < 2 {
			return ""
		}
		return fmt.Sprint(n, " updates")
	}},
	{"hub label", 5, onHub(func(w *world, key string, _ uint32) { w.hub.label(key) })},
	{"hub orphan", 3, onHub(func(w *world, key string, _ uint32) { w.hub.orphan(key) })},
	{"hub update of a deleted work", 3, func(w *world, a, b uint32) string {
		var dying []string
		for _, key := range w.hub.keys() {
			if w.hub.works[key].DeletionTimestamp != nil {
				dying = append(dying, key)
			}
		}
		if len(dying) == 0 {
			return ""
		}
		key := dying[int(a)%len(dying)]
		w.hub.update(key, b)
		return key
	}},
	{"hub delete", 9, onHub(func(w *world, key string, _ uint32) { w.hub.delete(key) })},
	{"hub recreate", 3, onHub(recreateWork)},
	{"hub tear off", 2, onHub(func(w *world, key string, _ uint32) { w.hub.tear(key) })},
	{"shop create", 7, func(w *world, a, b uint32) string {
		if s := w.shop.create(clusters[a%3], shopName1(a/3, clusters[a%3]), b); s != nil {
			return s.epoch
		}
		return ""
	}},
	{"shop update", 6, onOCMSource(func(w *world, s *ocmWork, b uint32) { w.shop.update(s, b) })},
	{"shop label", 3, onOCMSource(func(w *world, s *ocmWork, _ uint32) { w.shop.label(s) })},
	{"shop orphan", 2, onOCMSource(func(w *world, s *ocmWork, _ uint32) { w.shop.orphan(s) })},
	{"shop delete", 5, onOCMSource(func(w *world, s *ocmWork, _ uint32) { w.shop.delete(s) })},
	{"shop hurries", 6, onOCMSource(func(w *world, s *ocmWork, b uint32) { w.shop.hurry(s, b) })},
	{"shop recreate", 4, func(w *world, a, b uint32) string { return w.shop.recreate(a, b) }},
	{"select", 5, selectCluster},

	{"cut connection", 8, onLink(func(l *link) bool { return l.conn != nil }, func(l *link) { l.drop(unavailable("cut")) })},
	{"leave ghost", 5, onLink(func(l *link) bool { return l.conn != nil }, func(l *link) { l.leave(unavailable("cut")) })},
	{"reap ghosts", 3, func(w *world, _, _ uint32) string {
		if len(w.ghosts) == 0 {
			return ""
		}
		w.reap()
		return "all"
	}},
	{"partition", 5, onLink(func(l *link) bool { return !l.cut }, func(l *link) { l.cut = true; l.dropIfAny("partition") })},
	{"rejoin", 8, onLink(func(l *link) bool { return l.cut }, func(l *link) { l.cut = false })},
	{"slow reader", 6, onLink(func(l *link) bool { return !l.slow }, func(l *link) { l.slow = true })},
	{"reads again", 6, onLink(func(l *link) bool { return l.slow }, func(l *link) { l.slow = false })},
	{"give up on", 6, onCall(func(w *world, c *call) {
		w.delay(c)
		c.answer(transport.Receipt{}, unavailable("it takes too long"))
	}, false)},
	{"drop", 4, onCall(func(w *world, c *call) {
		w.forget(c)
		c.answer(transport.Receipt{}, unavailable("lost on the way"))
	}, false)},
	{"lose answer", 6, onCall(func(_ *world, c *call) { c.answer(transport.Receipt{}, unavailable("the answer was lost")) }, true)},
	{"duplicate", 6, onCall(func(w *world, c *call) {
		again := &call{conn: c.conn, event: c.event, bytes: c.bytes, what: "again " + c.what, answers: make(chan answer, 1)}
		w.delay(again)
		w.calls = append(w.calls, again)
	}, false)},
	{"lose hub answer", 4, func(w *world, _, _ uint32) string { w.source.unresponsive = true; return "the next" }},
	{"hub down or up", 4, func(w *world, _, _ uint32) string {
		w.hub.down = !w.hub.down
		return fmt.Sprint("down ", w.hub.down)
	}},
	{"copy hub", 6, func(w *world, a, _ uint32) string {
		if w.hub.old != nil && a%3 > 0 {
			return "" // the older copy stays: a restore of it changes more
		}
		w.hub.old = w.hub.backup()
		return fmt.Sprint(len(w.hub.works), " works")
	}},
	{"restore hub", restores, func(w *world, _, _ uint32) string {
		old := w.hub.old
		if old == nil || !restoreHub(w, old) {
			return ""
		}
		w.hub.old = nil
		return fmt.Sprint(len(w.hub.works), " works")
	}},
	{"hub goes back", restores, func(w *world, a, _ uint32) string {
		n := 1 + int(a%12)
		if !restoreHub(w, w.hub.ago(n)) {
			return ""
		}
		return fmt.Sprint(n, " changes, has ", len(w.hub.works), " works")
	}},
	{"approve", restores, func(w *world, a, _ uint32) string {
		if w.hub.epoch == 0 {
			return ""
		}
		w.settle(rand.New(rand.NewPCG(uint64(a), 7))) // withheld deletions are known then
		return w.approve()
	}},
	{"cluster down or up", 4, onAgent(func(a *agentNode, _ uint32) { a.down = !a.down })},
	{"agent dies within a round", 4, onAgent(func(a *agentNode, b uint32) { a.budget = 1 + int(b%12) })},
	{"restart agent", 8, func(w *world, a, b uint32) string {
		n := w.agents[int(a)%len(w.agents)]
		return n.name + ": " + n.restartAs(b)
	}},
	{"replace cluster", 2, replaceCluster},
	{"let cluster in", 4, func(w *world, _, _ uint32) string { return w.letIn() }},
	{"end replaced cluster", 2, func(w *world, a, _ uint32) string {
		if len(w.former) == 0 {
			return ""
		}
		old := w.former[int(a)%len(w.former)]
		w.end(old)
		return old.title
	}},
	{"copy state directory", 2, onAgent(func(a *agentNode, _ uint32) {
		if a.dir != nil {
			a.old = a.dir.backup()
		}
	})},
	{"state directory full", 3, onAgent(func(a *agentNode, _ uint32) {
		if a.dir != nil {
			a.dir.full = !a.dir.full
		}
	})},
	{"restart OCM agent", 3, func(w *world, _, _ uint32) string { w.ocmAgent.restart(); return "c3" }},
	{"restart hub source", 5, func(w *world, a, b uint32) string {
		s := w.source
		takesOver := s.standby != nil && a%4 != 0
		if w.hub.onlySeen && !(takesOver && s.standby.sawLater(w.hub.restored)) {
			return "" // it would lose the only knowledge of the restore
		}
		s.clock = otherClock(s.clock, b/16)
		switch lag := 1 + int(b%16); {
		case takesOver:
			s.takeOver()
			return fmt.Sprint("whose informers show life ", s.epoch)
		case a%2 == 0:
			s.restart(w.hub.informer(0))
			return "at once"
		default:
			s.restart(w.hub.informer(lag))
			return fmt.Sprint("whose informers lag ", lag)
		}
	}},
	{"informers stop or go on", 4, func(w *world, _, _ uint32) string {
		w.source.blind = !w.source.blind
		return fmt.Sprint("blind ", w.source.blind)
	}},
	{"crash broker", 4, func(w *world, a, _ uint32) string {
		return w.stopBroker(func() { w.broker.crash(a%2 == 0) })
	}},
	{"disk of the broker", 6, func(w *world, a, _ uint32) string {
		if d := disk(a % 4); w.broker.up && w.broker.disk.Load() < diskFails && w.broker.disk.Load() != d {
			w.broker.disk.Store(d)
			return [...]string{"has room", "is nearly full", "is full", "fails the next write"}[d]
		}
		return ""
	}},
	{"quota", 5, limit},
	{"hub refuses a status", 2, refuseStatus},
	{"drain broker", 3, func(w *world, _, _ uint32) string { return w.stopBroker(w.broker.drain) }},
	{"start broker", 12, func(w *world, _, b uint32) string {
		if w.broker.up {
			return ""
		}
		w.broker.clock = otherClock(w.broker.clock, b)
		w.broker.disk.Store(diskAmple)
		w.broker.start()
		return "from its store"
	}},
	{"copy broker's store", 3, func(w *world, _, _ uint32) string {
		if !w.broker.up {
			return ""
		}
		w.broker.old = w.broker.gate.Backup()
		return "while it is open"
	}},
	{"restore broker's store", 1, func(w *world, _, _ uint32) string {
		if w.broker.old == nil || !w.hub.mayForget(w.broker.old) {
			return ""
		}
		w.replaceStore(w.broker.old)
		return "from a copy"
	}},
	{"lose broker's store", 1, func(w *world, _, _ uint32) string {
		w.replaceStore(nil)
		return "wholly"
	}},
	{"drift", 5, drifts},
	{"hostile", 6, hostile},
}

// restores is the weight of the operations that restore the hub.
const restores = 8

// restoreHub restores the hub from a copy, unless neither broker nor hub-source could detect that.
func restoreHub(w *world, b *hubBackup) bool {
	if w.hub.epoch == epochs || !w.broker.knowsLater(b) && !w.source.sawLater(b) {
		return false
	}
	w.hub.onlySeen = !w.broker.knowsLater(b)
	w.hub.restored, w.hub.saw = b, 0
	if w.source.sawLater(b) {
		w.hub.saw = w.source.process
	}
	w.hub.restore(b)
	return true
}

// otherClock returns a clock that was set forward or back, or mostly the same one.
func otherClock(old time.Duration, b uint32) time.Duration {
	clocks := []time.Duration{0, 10 * time.Minute, -10 * time.Minute, time.Hour, -time.Hour, 26 * time.Hour, -26 * time.Hour}
	if b%4 != 0 {
		return old
	}
	return clocks[b/4%uint32(len(clocks))]
}

var (
	hubNames     = []string{"a", "b", "c"}
	ocmWorkNames = []string{"p", "q"}
)

// shopName1 is a name for a work of the shop. On the first cluster, which is
// never released, it may be one of the hub's.
func shopName1(a uint32, cluster string) string {
	if cluster == clusters[0] && a%4 == 0 {
		return hubNames[a/4%uint32(len(hubNames))]
	}
	return ocmWorkNames[a/4%uint32(len(ocmWorkNames))]
}

func wait(w *world, a, _ uint32) string {
	d := []time.Duration{5 * time.Millisecond, 200 * time.Millisecond, 2 * time.Second, 10 * time.Second, 40 * time.Second, 6 * time.Minute}[a%6]
	w.pass(d)
	return d.String()
}

func onHub(do func(w *world, key string, b uint32)) func(*world, uint32, uint32) string {
	return func(w *world, a, b uint32) string {
		var live []string
		for _, key := range w.hub.keys() {
			if w.hub.works[key].DeletionTimestamp == nil {
				live = append(live, key)
			}
		}
		if len(live) == 0 {
			return ""
		}
		key := live[int(a)%len(live)]
		what := fmt.Sprintf("%s %s", key, w.hub.works[key].UID)
		do(w, key, b)
		return what
	}
}

func onOCMSource(do func(w *world, s *ocmWork, b uint32)) func(*world, uint32, uint32) string {
	return func(w *world, a, b uint32) string {
		var live []string
		for _, key := range w.shop.keys() {
			if w.shop.works[key].o.DeletionTimestamp == nil {
				live = append(live, key)
			}
		}
		if len(live) == 0 {
			return ""
		}
		key := live[int(a)%len(live)]
		do(w, w.shop.works[key], b)
		return key
	}
}

func onLink(can func(*link) bool, do func(*link)) func(*world, uint32, uint32) string {
	return func(w *world, a, _ uint32) string {
		list := slices.DeleteFunc(slices.Clone(w.links), func(l *link) bool { return !can(l) })
		if len(list) == 0 {
			return ""
		}
		l := list[int(a)%len(list)]
		do(l)
		return l.id.String()
	}
}

func (l *link) dropIfAny(why string) {
	if l.conn != nil {
		l.drop(unavailable(why))
	}
}

func onCall(do func(*world, *call), arrived bool) func(*world, uint32, uint32) string {
	return func(w *world, a, _ uint32) string {
		list := slices.DeleteFunc(slices.Clone(w.calls), func(c *call) bool { return c.done == nil || c.arrived != arrived })
		if len(list) == 0 {
			return ""
		}
		c := list[int(a)%len(list)]
		do(w, c)
		return c.conn.link.id.String() + " " + c.what
	}
}

func onAgent(do func(a *agentNode, b uint32)) func(*world, uint32, uint32) string {
	return func(w *world, a, b uint32) string {
		n := w.agents[int(a)%len(w.agents)]
		do(n, b)
		return n.name
	}
}

func nameOf(w *workv1.ManifestWork) string {
	if w == nil {
		return ""
	}
	return fmt.Sprintf("%s/%s %s", w.Namespace, w.Name, w.UID)
}

func selectCluster(w *world, a, _ uint32) string {
	c := clusters[1+a%2] // the first is always served
	s := w.source
	s.selected[c] = !s.selected[c]
	if s.selected[c] {
		s.serve(c)
		return c
	}
	w.oracle.released[c] = true
	s.core.ClusterUnselected(s.of, c)
	return "no longer " + c
}

// replaceStore starts the broker with the content of a copy, or with an empty store. The operator of the OCM
// source is informed, because the source cannot detect it.
func (w *world) replaceStore(b *mem.Backup) {
	if w.broker.up {
		w.broker.crash(false)
	}
	w.broker.backup, w.broker.old = b, nil
	w.oracle.backInTime("")
	w.oracle.forgot = true
	w.oracle.forgetOrphans()
	w.oracle.broughtBack()
	for _, a := range w.agents {
		a.keepTime()
	}
	for _, l := range slices.Clone(w.late) { // from the previous store, so it arrives before that
		if l.conn.link == w.shop.link {
			w.deliverLate(l)
		}
	}
	w.shop.repeat()
}

// approve approves all withheld deletions of hub-source.
func (w *world) approve() string {
	withheld := map[string][]*hawserv1.WithheldDeletion{}
	if !w.broker.up {
		return ""
	}
	b := w.broker.broker
	err := b.ListDiscrepancies(&hawserv1.ListDiscrepanciesRequest{}, admincall.To(context.Background(), func(o *hawserv1.ListDiscrepanciesResponse) error {
		if o.GetCause() == hawserv1.DiscrepancyCause_DISCREPANCY_CAUSE_WITHHELD {
			withheld[o.GetCluster()] = append(withheld[o.GetCluster()], &hawserv1.WithheldDeletion{ResourceId: o.GetResourceId(), Name: o.GetName(), Revision: o.GetRevision()})
		}
		return nil
	}))
	if err != nil {
		w.fail("I1", "withheld deletions cannot be listed: %v", err)
	}
	n := 0
	for _, c := range slices.Sorted(maps.Keys(withheld)) {
		for _, d := range withheld[c] {
			if o := w.hub.byID(d.GetResourceId()); o != nil && o.DeletionTimestamp == nil {
				w.fail("I1", "a deletion of work %s is withheld, but the work is on the hub", o.UID)
			}
			w.oracle.approved(d.GetResourceId())
			n++
		}
		r := &hawserv1.ApproveRequest{Source: hubName, Cluster: c, Works: withheld[c]}
		go func() { // ends with the broker, at the latest; no caller waits for the answer
			_, _ = b.Approve(admincall.By(context.Background(), identity.Identity{Role: identity.Operator, Name: "op"}), r)
		}()
	}
	synctest.Wait()
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n, " deletions")
}

func (w *world) stopBroker(stop func()) string {
	if !w.broker.up {
		return ""
	}
	stop()
	return "down"
}

// drifts changes or deletes an object of a work, as another user of the cluster does.
func drifts(w *world, a, b uint32) string {
	n := w.agents[int(a)%len(w.agents)]
	var names []string
	for _, ref := range n.cluster.Refs() {
		if ref.Resource == "configmaps" && ref.Name != "bystander" {
			names = append(names, ref.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	ref := configMapRef(n.cluster, names[int(b/2)%len(names)])
	w.others = true
	defer func() { w.others = false }()
	if b%2 == 0 {
		n.cluster.Remove(ref)
		return n.name + " deletes " + ref.Name
	}
	n.cluster.Edit(ref, func(o *unstructured.Unstructured) {
		_ = unstructured.SetNestedField(o.Object, "changed", "data", "by")
	})
	return n.name + " changes " + ref.Name
}

// hostile lets a client try what its identity does not allow, or send an allowed event with a false content.
func hostile(w *world, a, b uint32) string {
	if !w.broker.up {
		return ""
	}
	if a%5 == 0 {
		return w.eavesdrop(b)
	}
	key := w.hub.keys()
	if len(key) == 0 {
		return ""
	}
	o := w.hub.works[key[int(b)%len(key)]].DeepCopy()
	if o.Namespace != clusters[0] || w.oracle.record(o.Namespace, string(o.UID)) == nil {
		return "" // the first client to publish an id owns it, also after a release
	}
	params := manifestwork.SpecParams{ID: w.newID(), Now: time.Now(), Source: shopName, Action: codec.UpdateRequest}
	from := w.shop.link
	var e codec.Event
	var err error
	switch a % 6 {
	case 1: // another source's work
		o.Generation, o.DeletionTimestamp = o.Generation+1, nil
		o.Spec.Workload.Manifests = manifests("stolen", "stolen", o.Generation, b)
		e, err = manifestwork.EncodeSpec(o, params)
	case 2: // another source's deletion
		params.Action = codec.DeleteRequest
		o.Generation += 5
		e, err = manifestwork.EncodeSpec(o, params)
	case 3: // under another source's name
		params.Source, params.Action = hubName, codec.DeleteRequest
		e, err = manifestwork.EncodeSpec(o, params)
	case 4: // an agent with a sequence id that no later status could follow
		from = w.agents[0].link
		ref := manifestwork.Ref{ResourceID: string(o.UID), Name: o.Name, Cluster: o.Namespace, Generation: o.Generation}
		e, err = manifestwork.EncodeStatus(ref, o.Status, manifestwork.StatusParams{
			ID: w.newID(), Now: time.Now(), Source: "liar", OriginalSource: hubName, Action: codec.UpdateRequest,
			SequenceID: []string{"9223372036854771711", fmt.Sprint(1<<60 | 7<<12)}[b/8%2], Deleted: b/16%2 == 1,
		})
	default: // a lying agent reports the end of the work
		from = w.agents[0].link
		ref := manifestwork.Ref{ResourceID: string(o.UID), Name: o.Name, Cluster: o.Namespace, Generation: o.Generation + 1}
		e, err = manifestwork.EncodeStatus(ref, o.Status, manifestwork.StatusParams{
			ID: w.newID(), Now: time.Now(), Source: "liar", OriginalSource: hubName, Action: codec.UpdateRequest,
			SequenceID: (&codec.Sequencer{}).Next(time.Now().UnixMilli()), Deleted: true,
		})
		if w.oracle.everGone[string(o.UID)] {
			// The agent may report this for deleted works of its own cluster, and the broker accepts it. It even accepts it
			// if it does not know yet that a restored hub has the work again.
			return ""
		}
	}
	if err != nil {
		panic(err)
	}
	raw := marshal(e)
	broker, peer := w.broker.broker, w.peer(from.id)
	go func() { // ends with the broker, at the latest; no caller waits for the answer
		_, _ = broker.Publish(context.Background(), peer, raw, "")
	}()
	return fmt.Sprintf("%s: case %d about %s", from.id, a%6, o.UID)
}

// eavesdrop subscribes to the events of another client.
func (w *world) eavesdrop(b uint32) string {
	l := &link{w: w, id: identity.Identity{Role: identity.Agent, Name: "c1"}, window: 1}
	f := transport.Filter{Cluster: "c2", DataType: codec.ManifestBundles}
	if b%2 == 0 {
		l.id = identity.Identity{Role: identity.Source, Name: shopName}
		f = transport.Filter{Source: hubName, DataType: codec.ManifestBundles}
	}
	connect := w.connect
	if w.shape.mqtt {
		connect = w.connectMQTT
	}
	c := connect(l, f, transport.Hello{Protocol: int(b / 2 % 2)})
	w.ghosts = append(w.ghosts, c)
	w.broker.catchUp(c)
	if len(c.stream.accepted) > 0 {
		w.fail("I8", "%s was let in on %v", l.id, f)
	}
	return l.id.String() + " subscribes to another client's events"
}
