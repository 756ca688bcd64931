package sim

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/session"
	"github.com/hawser-io/hawser/pkg/transport"
)

// link is a client's way to the broker, driven by the real session machine.
type link struct {
	w       *world
	id      identity.Identity
	name    string
	machine *session.Machine
	conn    *conn
	at      *node // the broker that it dialed last
	redial  time.Time
	cut     bool // nothing gets through
	slow    bool // it does not read
	window  int
	mqtt    bool // it speaks MQTT, not gRPC

	uid   string // of an agent's cluster, "" if the client does not report it
	truth *truth // of an agent's cluster

	// With a stateless broker: spoke is the session in which this client last published. latest is the newest
	// session of hub-source that it received an event from. positions are the sequence numbers of those events, by
	// work.
	spoke     string
	latest    string
	positions map[string]uint64
}

// conn is one connection with its subscription.
type conn struct {
	link   *link
	at     *node
	peer   transport.Peer
	cancel context.CancelFunc
	stream *stream
	ended  chan error
	over   chan struct{} // closed when the broker's side has returned
	id     string        // of the subscription
	client *client       // of MQTT, else nil
}

// stream is the receiving side: a window of events that were sent and not read.
type stream struct {
	ctx      context.Context
	accepted chan transport.Accepted
	events   chan []byte
}

func (s *stream) Accept(a transport.Accepted) error {
	s.accepted <- a
	return nil
}

func (s *stream) Send(parts ...[]byte) error {
	event := slices.Concat(parts...)
	if codec.IsHeartbeat(event) {
		return nil
	}
	select {
	case s.events <- event:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

func newLink(w *world, id identity.Identity, p session.Handler) *link {
	filter := transport.Filter{DataType: codec.ManifestBundles}
	if id.Role == identity.Agent {
		filter.Cluster = id.Name
	} else {
		filter.Source = id.Name
	}
	m, err := session.NewMachine(session.Config{Filter: filter, Handler: p, Rand: w.jitter(id.String())})
	if err != nil {
		panic(err)
	}
	l := &link{w: w, id: id, name: id.String(), machine: m, window: 1 + w.rng.IntN(2)}
	l.mqtt = w.shape.mqtt && w.spoken.IntN(4) > 0
	w.links = append(w.links, l)
	return l
}

func unavailable(message string) *transport.Error {
	return &transport.Error{Code: transport.CodeUnavailable, Message: message}
}

func (l *link) steps(list []step) []step {
	switch {
	case l.conn == nil && !l.redial.After(time.Now()):
		return append(list, step{l.name, "dials", "", l.dial})
	case l.conn == nil, len(l.conn.stream.events) > 0 && l.slow:
	case len(l.conn.stream.events) > 0:
		return append(list, step{l.name, "receives", "", l.receive})
	case len(l.conn.ended) > 0:
		return append(list, step{l.name, "notices the end", "", func() { l.drop(<-l.conn.ended) }})
	}
	return list
}

func (l *link) dial() {
	l.at = l.w.anyBroker()
	if l.cut || l.at == nil {
		l.redial = time.Now().Add(l.machine.Ended(time.Now(), unavailable("no way")).For)
		return
	}
	sub := l.machine.Dialed()
	switch {
	case l.w.stateless != nil:
		l.conn = l.w.stateless.subscribe(l)
	case l.mqtt:
		l.conn = l.w.connectMQTT(l, sub.Filter, sub.Hello)
		l.at.catchUp(l.conn)
	default:
		l.conn = l.w.connect(l, sub.Filter, sub.Hello)
		l.at.catchUp(l.conn)
	}
	c := l.conn
	if len(c.stream.accepted) == 0 {
		l.drop(<-c.ended)
		return
	}
	a := <-c.stream.accepted
	if sub.Hello.Protocol > 0 || l.w.stateless != nil { // OCM clients do not echo it
		c.id = a.SubscriptionID
	}
	l.w.oracle.noteReport(l)
	events, err := l.machine.Accepted(context.Background(), time.Now(), a)
	if err != nil {
		l.drop(err)
		return
	}
	l.publishAll(c, events)
}

// publishAll publishes events one after the other. A failure ends the connection.
func (l *link) publishAll(c *conn, events []codec.Event) {
	if len(events) == 0 {
		return
	}
	l.w.send(l, events[0], "resync", func(_ transport.Receipt, err error) {
		switch {
		case l.conn != c:
		case err != nil:
			l.drop(err)
		default:
			l.publishAll(c, events[1:])
		}
	})
}

// connect subscribes. The caller handles the answer.
func (w *world) connect(l *link, f transport.Filter, h transport.Hello) *conn {
	ctx, cancel := context.WithCancel(context.Background())
	c := &conn{
		link: l, at: cmp.Or(l.at, w.broker), cancel: cancel, ended: make(chan error, 1), over: make(chan struct{}),
		peer:   w.peer(l.id),
		stream: &stream{ctx: ctx, accepted: make(chan transport.Accepted, 1), events: make(chan []byte, l.window)},
	}
	raw := transport.RawSubscription{Source: f.Source, Cluster: f.Cluster, DataType: f.DataType.String(), Hello: h}
	b := c.at.broker
	go func() { // ends with ctx
		defer close(c.over)
		c.ended <- b.Subscribe(ctx, c.peer, raw, c.stream)
	}()
	return c
}

// peer is a client on a connection of its own, as the listener presents it.
func (w *world) peer(id identity.Identity) transport.Peer {
	w.conns++
	return transport.Peer{Role: string(id.Role), Name: id.Name, Addr: "sim", Conn: w.conns}
}

func (l *link) receive() {
	raw := <-l.conn.stream.events
	e, err := codec.Unmarshal(raw)
	if err != nil {
		l.w.fail("I8", "%s was sent what cannot be read: %v", l.id, err)
		return
	}
	env, err := codec.ParseEnvelope(raw)
	if err != nil {
		l.w.fail("I8", "%s was sent what cannot be read: %v", l.id, err)
		return
	}
	l.w.note("  %s gets %s", l.id, show(&env))
	l.w.oracle.received(l, &env, e)
	c := l.conn
	switch err := l.machine.Received(context.Background(), e); {
	case err != nil:
		l.drop(err)
	case c.client != nil:
		c.client.acknowledge()
	}
}

func show(env *codec.Envelope) string {
	if env.Type == (codec.EventType{}) {
		return env.RawType[strings.LastIndex(env.RawType, ".")+1:]
	}
	s := fmt.Sprintf("%s.%s %s v%d", env.Type.Subresource, env.Type.Action, env.ResourceID, env.Version)
	if env.Deleting {
		s += " deleting"
	}
	return s
}

// drop ends the connection for both sides. The client leaves first. Otherwise it is random whether a call
// notices the end of its connection before it is examined.
func (l *link) drop(err error) {
	c := l.conn
	l.leave(err)
	if c != nil {
		c.cancel()
	}
}

// leave ends the connection for the client. The broker does not notice until the connection is canceled.
func (l *link) leave(err error) {
	c := l.conn
	l.conn = nil
	l.redial = time.Now().Add(l.machine.Ended(time.Now(), err).For)
	if c == nil {
		return
	}
	l.w.ghosts = append(l.w.ghosts, c)
	if c.client != nil {
		c.client.left.Store(true)
	}
	for _, call := range slices.Clone(l.w.calls) {
		if call.conn == c {
			l.w.breakOff(call)
		}
	}
}

// breakOff ends the connection of a call. The caller takes an answer that has already arrived in a later step.
// That step may come after the next connection began. The same holds for the error that reports the broken
// connection.
func (w *world) breakOff(c *call) {
	done, reported := c.done, answer{err: unavailable("the connection broke")}
	c.done = nil
	if len(c.answers) > 0 {
		reported = w.take(c)
	} else {
		w.delay(c)
		c.alone = w.rng.IntN(2) == 0
	}
	switch {
	case done == nil:
	case w.rng.IntN(2) == 0:
		done(reported.receipt, reported.err)
	default:
		w.late = append(w.late, &late{c, func() { done(reported.receipt, reported.err) }})
	}
}

// late is an answer that waits for its turn.
type late struct {
	*call
	deliver func()
}

// call is one publish in flight.
type call struct {
	conn  *conn
	event codec.Event
	bytes []byte
	what  string
	// done passes the answer to the publisher; nil if the publisher no longer waits.
	done    func(transport.Receipt, error)
	arrived bool
	answers chan answer
	// notBefore delays a publish without a waiting publisher, so that it may arrive after later publishes.
	notBefore time.Time
	// alone: the call continues after the end of its connection, because a proxy has sent it on through another
	// one.
	alone bool
}

// delay makes a publish late.
func (w *world) delay(c *call) {
	if c.conn.link == w.source.link && specOfWork(c.event) && w.oracle.missing[fmt.Sprint(c.event.Extensions()[codec.ExtResourceID])] {
		w.forget(c) // nothing would reveal its effect on a work that the hub lost
	}
	if env := envelope(c.event); w.stateless != nil && (env.Cluster == w.ocmAgent.name) {
		w.forget(c) // an OCM agent cannot detect late events
	}
	longest := []time.Duration{0, 100 * time.Millisecond, 5 * time.Second, time.Minute}[w.rng.IntN(4)]
	c.notBefore = time.Now().Add(time.Duration(w.rng.Float64() * float64(longest)))
}

type answer struct {
	receipt transport.Receipt
	err     error
	given   time.Time
}

// send begins a publish. done is called once, in a later step, or at once when
// there is no connection.
func (w *world) send(l *link, e codec.Event, what string, done func(transport.Receipt, error)) {
	if l.conn == nil {
		done(transport.Receipt{}, unavailable("not connected"))
		return
	}
	b, err := codec.Marshal(e)
	if err != nil {
		panic(err)
	}
	w.oracle.sent(l, e)
	w.overtake(l.conn, e)
	w.calls = append(w.calls, &call{conn: l.conn, event: e, bytes: b, what: what, done: done, answers: make(chan answer, 1)})
}

// overtake drops abandoned publishes about the same work as e on the same connection. Their cancellation
// travels on that connection too, ahead of e. On another connection an abandoned publish may arrive late.
//
// An OCM source is an exception, because its events carry only a version. Of two events with the same version
// the later arrival wins. A create that arrives after its deletion creates the work again. No receiver could
// detect either.
func (w *world) overtake(c *conn, e codec.Event) {
	if !specOfWork(e) {
		return
	}
	w.calls = slices.DeleteFunc(w.calls, func(o *call) bool {
		elsewhere := c.link == w.shop.link && o.conn.link == c.link && (deletion(e) || sameVersion(o.event, e))
		return (o.conn == c || elsewhere) && o.done == nil && !o.arrived && specOfWork(o.event) &&
			o.event.Extensions()[codec.ExtResourceID] == e.Extensions()[codec.ExtResourceID]
	})
}

// sameVersion reports whether two events are about the same version of a live work. Such events differ only in
// labels, or belong to different works with the same id.
func sameVersion(a, b codec.Event) bool {
	x, y := envelope(a), envelope(b)
	return specOfWork(a) && specOfWork(b) && !x.Deleting && !y.Deleting && x.ResourceID == y.ResourceID && x.Version == y.Version
}

// forgetRepeats drops repeated publishes in flight of a rejected work. Once the name is free, they could not be
// distinguished from a new attempt.
func (w *world) forgetRepeats(l *link, id string) {
	w.calls = slices.DeleteFunc(w.calls, func(o *call) bool {
		return o.done == nil && !o.arrived && o.conn.link == l && specOfWork(o.event) && envelope(o.event).ResourceID == id
	})
}

// specOfWork reports whether an event is a work, or its deletion.
func specOfWork(e codec.Event) bool {
	t, err := codec.ParseEventType(e.Type())
	return err == nil && t.Subresource == codec.Spec && t.Action != codec.ResyncRequest
}

// deletion reports whether an event is the deletion of a work.
func deletion(e codec.Event) bool {
	_, has := e.Extensions()[codec.ExtDeletionTimestamp]
	return has
}

// answer passes the answer to the publisher, once.
func (c *call) answer(r transport.Receipt, err error) {
	if done := c.done; done != nil {
		c.done = nil
		done(r, err)
	}
}

func (w *world) callSteps(list []step) []step {
	now := time.Now()
	for _, c := range w.calls {
		name := c.conn.link.name
		switch {
		case !c.arrived && (c.notBefore.After(now) || w.isHung(c)):
		case !c.arrived:
			list = append(list, step{name, "arrives", c.what, func() { w.arrive(c) }})
		case len(c.answers) > 0:
			list = append(list, step{name, "answered", c.what, func() { w.answer(c) }})
		}
	}
	for _, l := range w.late {
		list = append(list, step{l.conn.link.name, "answered late", l.what, func() { w.deliverLate(l) }})
	}
	return list
}

func (w *world) deliverLate(l *late) {
	w.late = slices.DeleteFunc(w.late, func(o *late) bool { return o == l })
	l.deliver()
}

// answer passes the received answer to the publisher.
func (w *world) answer(c *call) {
	a := w.take(c)
	c.answer(a.receipt, a.err)
}

// answerOCM delivers the answers to the OCM agent that would be older than the rest interval at that time. What
// the broker sends after the rest uses the same connection as the answer, and arrives after it.
func (w *world) answerOCM(at time.Time) {
	for _, c := range slices.Clone(w.calls) {
		if c.conn.link != w.ocmAgent.link || len(c.answers) == 0 {
			continue
		}
		a := <-c.answers
		c.answers <- a
		if at.Sub(a.given) >= broker.DefaultRest {
			w.answer(c)
		}
	}
}

// take takes the received answer of a call.
func (w *world) take(c *call) answer {
	a := <-c.answers
	w.forget(c)
	if a.err == nil && w.stateless == nil {
		w.oracle.acknowledged(c, a.receipt)
	}
	return a
}

// arrive brings a publish to the broker.
func (w *world) arrive(c *call) {
	c.arrived = true
	if !w.brokerOf(c.conn).up || c.conn.link.cut {
		c.answers <- answer{err: unavailable("no way"), given: time.Now()}
		return
	}
	w.oracle.arrived(c)
	if w.stateless != nil {
		w.stateless.publish(c)
		c.answers <- answer{given: time.Now()}
		return
	}
	if c.conn.client != nil {
		c.conn.client.send(c)
		return
	}
	b, ctx := w.brokerOf(c.conn).broker, c.conn.stream.ctx
	if c.alone {
		ctx = context.Background()
	}
	go func() { // ends with the broker or the connection, at the latest
		lent := slices.Clone(c.bytes)
		r, err := b.Publish(ctx, c.conn.peer, lent, c.conn.id)
		clear(lent) // the memory is used again
		c.answers <- answer{r, err, time.Now()}
	}()
}

func (w *world) forget(c *call) {
	w.calls = slices.DeleteFunc(w.calls, func(o *call) bool { return o == c })
}

// forgetAll loses the publishes of a client that the broker has not received yet.
func (w *world) forgetAll(l *link) {
	for _, c := range slices.Clone(w.calls) {
		if c.conn.link == l && !c.arrived {
			w.forget(c)
			c.answer(transport.Receipt{}, unavailable("lost on the way"))
		}
	}
}

// cutAll ends every connection to a broker, and the brokers' side of all earlier ones.
func (w *world) cutAll(n *node) {
	for _, l := range w.links {
		if l.conn != nil && w.brokerOf(l.conn) == n {
			l.drop(unavailable("the broker is gone"))
		}
	}
	w.reap()
}

// reap lets the broker notice the peers that are gone. A commit for one of them is completed first.
func (w *world) reap() {
	w.ghosts = slices.DeleteFunc(w.ghosts, func(c *conn) bool {
		c.cancel()
		synctest.Wait()
		select {
		case <-c.over:
			return true
		default:
			return false
		}
	})
}
