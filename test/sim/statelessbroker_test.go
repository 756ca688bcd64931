package sim

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/transport"
)

// statelessBroker is an MQTT broker without records, instead of Hawser's. It acknowledges each publish. It
// keeps only the pending events of the sessions that it remembers. It delivers an event once, twice, late,
// after its successors, on a later session, or never.
type statelessBroker struct {
	w      *world
	subs   map[*link]*conn
	queued map[*link][][]byte // for disconnected clients whose session is remembered
	late   []*parcel
	lossy  int // the number of deliveries to lose, although they were acknowledged
	twice  int // the number of deliveries to duplicate
	tardy  int // the number of deliveries to delay
	conns  int
}

// parcel is a late event. It reaches the session that its receiver has at that time.
type parcel struct {
	to    *link
	event []byte
	at    time.Time
}

// queued is the limit of pending events for a client that does not read; further events are lost.
const queued = 200

func newStatelessBroker(w *world) *statelessBroker {
	return &statelessBroker{w: w, subs: map[*link]*conn{}, queued: map[*link][][]byte{}}
}

// subscribe begins a session, and takes over the previous session of that client.
func (b *statelessBroker) subscribe(l *link) *conn {
	b.conns++
	ctx, cancel := context.WithCancel(context.Background())
	c := &conn{
		link: l, cancel: cancel, ended: make(chan error, 1), over: make(chan struct{}),
		peer:   b.w.peer(l.id),
		stream: &stream{ctx: ctx, accepted: make(chan transport.Accepted, 1), events: make(chan []byte, queued)},
	}
	close(c.over) // no goroutine serves this connection
	b.subs[l] = c
	c.stream.accepted <- transport.Accepted{SubscriptionID: fmt.Sprint("session-", b.conns), Stateless: true}
	for _, event := range b.queued[l] {
		b.deliver(l, event)
	}
	delete(b.queued, l)
	return c
}

// publish accepts an event, and delivers it to the subscribers of its topic.
func (b *statelessBroker) publish(c *call) {
	env := envelope(c.event)
	for _, l := range b.w.links {
		toAgent := c.conn.link.id.Role == identity.Source && l.id.Role == identity.Agent && l.id.Name == env.Cluster
		toSource := c.conn.link.id.Role == identity.Agent && l.id.Role == identity.Source && l.id.Name == hubName
		if toAgent || toSource {
			b.deliverTo(l, c)
		}
	}
}

// ocmBetween reports whether one end is an OCM client. Such a client cannot detect that an event is late.
func (b *statelessBroker) ocmBetween(from, to *link) bool {
	return from == b.w.ocmAgent.link || to == b.w.ocmAgent.link
}

func (b *statelessBroker) deliverTo(l *link, c *call) {
	n := 1
	switch {
	case b.lossy > 0:
		b.lossy--
		b.w.note("  %s is not sent %s", l.name, c.what)
		return
	case b.twice > 0:
		b.twice--
		n = 2
	}
	for range n {
		if b.tardy > 0 && !b.ocmBetween(c.conn.link, l) {
			b.tardy--
			longest := []time.Duration{time.Second, time.Minute, 10 * time.Minute}[b.w.rng.IntN(3)]
			b.late = append(b.late, &parcel{l, c.bytes, time.Now().Add(time.Duration(b.w.rng.Float64() * float64(longest)))})
			continue
		}
		if l.conn == nil && !b.ocmBetween(c.conn.link, l) && len(b.queued[l]) < queued {
			b.queued[l] = append(b.queued[l], c.bytes)
			continue
		}
		b.deliver(l, c.bytes)
	}
}

// deliver sends an event on the present session of a client, if there is one.
func (b *statelessBroker) deliver(l *link, event []byte) {
	c := b.subs[l]
	if c == nil || c.stream.ctx.Err() != nil {
		return
	}
	select {
	case c.stream.events <- event:
	default: // the queue is full
	}
}

func (b *statelessBroker) steps(list []step) []step {
	for _, p := range b.late {
		if !p.at.After(time.Now()) {
			list = append(list, step{p.to.name, "is sent late", "", func() {
				b.late = slices.DeleteFunc(b.late, func(o *parcel) bool { return o == p })
				b.deliver(p.to, p.event)
			}})
		}
	}
	return list
}

// heal ends the faults. Late events are due at once.
func (b *statelessBroker) heal() {
	b.lossy, b.twice, b.tardy = 0, 0, 0
	for _, p := range b.late {
		p.at = time.Now()
	}
}

// forget drops the sessions of all disconnected clients.
func (b *statelessBroker) forget() { clear(b.queued) }

// statelessOperations are the operations with a stateless broker.
var statelessOperations = append(slices.DeleteFunc(slices.Clone(operations), func(o operation) bool {
	ours := []string{
		"settle around the stuck", "hub create without an agent", "approve", "replace cluster", "let cluster in", "end replaced cluster", "hostile",
		"crash broker", "drain broker", "start broker", "disk of the broker", "copy broker's store", "restore broker's store", "lose broker's store",
	}
	return strings.HasPrefix(o.name, "shop ") || slices.Contains(ours, o.name)
}), []operation{
	{"stateless broker restarts", 5, func(w *world, _, _ uint32) string {
		w.stateless.forget()
		w.stateless.late = nil
		w.cutAll(w.broker)
		return "empty"
	}},
	{"stateless broker forgets sessions", 4, func(w *world, _, _ uint32) string { w.stateless.forget(); return "all" }},
	{"stateless broker loses", 10, func(w *world, a, _ uint32) string {
		w.stateless.lossy += 1 + int(a%3)
		return fmt.Sprint("the next ", w.stateless.lossy)
	}},
	{"stateless broker sends a last will", 6, func(w *world, a, b uint32) string {
		// The agent may be gone or not, and the last will may come in time or on a later session.
		agent := w.agents[int(a)%len(w.agents)]
		if agent.will == nil || b%2 == 0 {
			e, err := agent.core.Goodbye()
			if err == nil {
				agent.will, err = codec.Marshal(e)
			}
			if err != nil {
				panic(err)
			}
		}
		w.stateless.deliverTo(w.source.link, &call{conn: &conn{link: agent.link}, bytes: agent.will, what: "a last will"})
		return "of " + agent.title
	}},
	{"stateless broker duplicates", 6, func(w *world, a, _ uint32) string {
		w.stateless.twice += 1 + int(a%4)
		return fmt.Sprint("the next ", w.stateless.twice)
	}},
	{"stateless broker delays", 12, func(w *world, a, _ uint32) string {
		w.stateless.tardy += 1 + int(a%4)
		return fmt.Sprint("the next ", w.stateless.tardy)
	}},
}...)

// counts reports whether an event can take effect at its receiver. An event of a previous hub-source, or to a
// previous agent process, does not count. Neither does an event that arrives after a later one.
func (l *link) counts(e codec.Event) bool {
	if l.w.stateless == nil || l == l.w.ocmAgent.link {
		return true
	}
	text, _ := e.Extensions()[codec.ExtSession].(string)
	number, _, _ := strings.Cut(text, ".")
	if _, err := strconv.ParseUint(number, 10, 64); err != nil {
		l.w.fail("I2", "%s was sent an event of no session", l.name)
		return false
	}
	session := fmt.Sprintf("%20s%s", number, strings.TrimPrefix(text, number)) // compares by number, then by id
	if session > l.latest {
		l.latest, l.positions = session, map[string]uint64{}
	}
	if session < l.latest || e.Extensions()[codec.ExtPeerSession] != l.spoke {
		return false
	}
	order, _ := e.Extensions()[codec.ExtFence].(string)
	place, err := strconv.ParseUint(order, 10, 64)
	if err != nil {
		l.w.fail("I2", "%s was sent an event of no place", l.name)
	}
	id := fmt.Sprint(e.Extensions()[codec.ExtResourceID])
	late := place < l.positions[id]
	l.positions[id] = max(place, l.positions[id])
	return !late
}

// checkOCM checks that an OCM agent holds exactly the works of the hub; there are no records to compare with.
func (w *world) checkOCM() {
	for id := range w.ocmAgent.works {
		if w.hub.byID(id) == nil && !w.oracle.missing[id] && w.source.selected[w.ocmAgent.name] {
			w.fail("I1", "the OCM agent still has work %s", id)
		}
	}
}

// checkTag checks that the AppliedManifestWork records the spec of the hub, including labels.
func (w *world) checkTag(a *agentNode, o *workv1.ManifestWork) {
	tag, err := manifestwork.SpecTag(o)
	if err != nil {
		panic(err)
	}
	applied := a.cluster.Look(appliedwork.Ref(appliedwork.Name(hubHash, o.Name)))
	if applied == nil {
		w.fail("I1", "cluster %s has no AppliedManifestWork of %s", a.name, o.Name)
		return
	}
	if notes := applied.GetAnnotations(); notes[appliedwork.AnnotationTag] != tag.String() || notes[appliedwork.AnnotationWorkID] != string(o.UID) {
		w.fail("I1", "cluster %s records %v of %s, the hub has tag %s of %s with labels %v", a.name, notes, o.Name, tag, o.UID, o.Labels)
	}
}

// TestSeeds_StatelessBroker plays seeds with a stateless MQTT broker instead of Hawser's. The environment
// selects the seeds.
func TestSeeds_StatelessBroker(t *testing.T) {
	playSeeds(t, bused, leastStatelessSeeds, statelessTime)
}

// The defaults of TestSeeds_StatelessBroker.
const (
	statelessTime       = 20 * time.Second
	leastStatelessSeeds = 300
)

// statelessThemes are the themes with a stateless broker.
var statelessThemes = [][]string{
	{"stateless broker loses", "stateless broker restarts", "hub update", "hub delete", "restart agent", "restart OCM agent"},
	{"stateless broker delays", "hub update", "hub label", "hub delete", "restart hub source", "cut connection"},
	{"stateless broker delays", "stateless broker duplicates", "hub create", "hub delete", "restart agent"},
	{"hub goes back", "stateless broker loses", "hub create", "hub delete", "cut connection"},
	{"hub tear off", "hub recreate", "stateless broker loses", "restart hub source", "cut connection"},
	{"restart hub source", "informers stop or go on", "hub create", "hub delete", "cut connection", "restart agent"},
	{"select", "stateless broker loses", "hub update", "hub delete", "cut connection"},
}
