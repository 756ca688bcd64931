package mqtt

import (
	"slices"
	"strings"
	"sync"

	"github.com/eclipse/paho.golang/packets"

	"github.com/hawser-io/hawser/internal/taskgroup"
)

const (
	// receiveMaximum is the number of unaccepted messages that the broker may have sent.
	receiveMaximum = 64
	// maxQueued bounds their bytes, also for a broker that exceeds receiveMaximum. Above it, reading stops until
	// some messages were accepted.
	maxQueued = 16 << 20
	// messageWeight is the memory of a message without its text, propertyWeight that of a property, in bytes.
	messageWeight, propertyWeight = 512, 64
	// acksAtOnce is the number of accepted messages whose acknowledgement may wait while the next one is handled.
	// It is much lower than receiveMaximum.
	acksAtOnce = 8
)

// message is a received PUBLISH.
type message struct {
	packet *packets.Publish // nil when it was handled
	id     uint16           // its packet id, 0 for QoS 0
	size   int
	left   int // subscriptions that must still accept it
}

// inbox holds the received messages that are not acknowledged. It acknowledges them in order of arrival, as
// MQTT requires. A message is acknowledged when all its subscriptions have accepted it.
type inbox struct {
	// acknowledge sends PUBACKs in this order.
	acknowledge func(ids []uint16)
	// dropped is called with each message that matches no subscription.
	dropped func(p *packets.Publish)

	acking sync.Mutex // held while acknowledgements are sent, so that they stay in order

	mu sync.Mutex
	// keeps: the broker stores unacknowledged messages for the next connection.
	keeps  bool
	order  []*message
	subs   []*subscription
	bytes  int
	space  chan struct{} // closed when bytes shrink; nil without a waiter
	closed bool
}

// subscription is one running Subscribe. The inbox's lock protects its fields.
type subscription struct {
	filters []string
	queue   []*message
	wake    taskgroup.Bell // has one element when something was added
	ready   bool           // the broker has accepted it
}

// keepUnaccepted records that the broker stores unacknowledged messages for the next connection.
func (b *inbox) keepUnaccepted() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.keeps = true
}

// push adds a message; it waits while the inbox is full.
func (b *inbox) push(p *packets.Publish) {
	m := &message{packet: p, id: p.PacketID, size: messageWeight + len(p.Payload) + len(p.Topic)}
	if p.QoS == 0 {
		m.id = 0
	}
	for i := range p.Properties.User {
		m.size += propertyWeight + len(p.Properties.User[i].Key) + len(p.Properties.User[i].Value)
	}
	flush := false
	b.mu.Lock()
	for b.bytes > maxQueued && !b.closed {
		if !b.anyReady() {
			// Scenario:
			//   t1: a stored session delivers more than fits.
			//   t2: the SUBACK follows these messages, and would never be read.
			// Result: drop the messages. A client that subscribes requests a resync, so nothing is lost.
			b.letGo()
			flush = true
			continue
		}
		space := b.waitForSpace()
		b.mu.Unlock()
		<-space
		b.mu.Lock()
	}
	b.order = append(b.order, m)
	b.bytes += m.size
	unclaimed := !b.hand(m) && (len(b.subs) > 0 || !b.keeps)
	if unclaimed {
		b.done(m)
	}
	b.mu.Unlock()
	if unclaimed {
		b.dropped(p)
	}
	if unclaimed || flush {
		b.flush()
	}
}

// hand adds m to the matching subscriptions, and reports whether there are any.
func (b *inbox) hand(m *message) bool {
	for _, s := range b.subs {
		if slices.ContainsFunc(s.filters, func(f string) bool { return matches(f, m.packet.Topic) }) {
			m.left++
			s.queue = append(s.queue, m)
			s.wake.Ring()
		}
	}
	return m.left > 0
}

func (b *inbox) anyReady() bool {
	return slices.ContainsFunc(b.subs, func(s *subscription) bool { return s.ready })
}

// letGo drops all messages.
func (b *inbox) letGo() {
	for _, s := range b.subs {
		s.queue = nil
	}
	for _, m := range b.order {
		b.done(m)
	}
}

func (b *inbox) waitForSpace() <-chan struct{} {
	if b.space == nil {
		b.space = make(chan struct{})
	}
	return b.space
}

func (b *inbox) freedSpace() {
	if b.space != nil {
		close(b.space)
		b.space = nil
	}
}

// full reports whether reading is paused because the client is slow.
func (b *inbox) full() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.space != nil
}

// done marks a message as accepted.
func (b *inbox) done(m *message) {
	if m.packet == nil {
		return
	}
	m.packet, m.left = nil, 0
	b.bytes -= m.size
	b.freedSpace()
}

// flush acknowledges the accepted messages up to the first unaccepted one.
func (b *inbox) flush() {
	b.acking.Lock()
	defer b.acking.Unlock()
	var ids []uint16
	b.mu.Lock()
	n := 0
	for ; n < len(b.order) && b.order[n].packet == nil; n++ {
		if b.order[n].id != 0 {
			ids = append(ids, b.order[n].id)
		}
	}
	b.order = slices.Delete(b.order, 0, n)
	b.mu.Unlock()
	if len(ids) > 0 {
		b.acknowledge(ids)
	}
}

// add starts a subscription. It gets the waiting messages that match.
func (b *inbox) add(filters []string) *subscription {
	s := &subscription{filters: filters, wake: taskgroup.NewBell()}
	var foreign []*packets.Publish
	b.mu.Lock()
	b.subs = append(b.subs, s)
	for _, m := range b.order {
		if m.packet != nil && m.left == 0 && !b.hand(m) {
			foreign = append(foreign, m.packet)
			b.done(m)
		}
	}
	b.mu.Unlock()
	for _, p := range foreign {
		b.dropped(p)
	}
	b.flush()
	return s
}

// accepted records that the broker has accepted the subscription.
func (b *inbox) accepted(s *subscription) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.ready = true
}

// remove ends a subscription. Its unaccepted messages wait for the next one, if the broker stores them too.
func (b *inbox) remove(s *subscription) {
	b.mu.Lock()
	b.subs = slices.DeleteFunc(b.subs, func(o *subscription) bool { return o == s })
	for _, m := range s.queue {
		if m.left--; m.left <= 0 && !b.keeps {
			b.done(m)
		}
	}
	s.queue = nil
	b.mu.Unlock()
	b.flush()
}

// orphaned returns the filters of the removed s that no other subscription has.
func (b *inbox) orphaned(s *subscription) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.filters), func(f string) bool {
		return slices.ContainsFunc(b.subs, func(o *subscription) bool { return slices.Contains(o.filters, f) })
	})
}

// next takes the next message of s; ok is false if there is none now.
func (b *inbox) next(s *subscription) (*message, *packets.Publish, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(s.queue) == 0 {
		return nil, nil, false
	}
	m := s.queue[0]
	s.queue = slices.Delete(s.queue, 0, 1)
	return m, m.packet, true
}

// handled records that s has accepted m.
func (b *inbox) handled(s *subscription, m *message) {
	b.mu.Lock()
	if m.left--; m.left <= 0 {
		b.done(m)
	}
	waiting := 0
	for waiting < len(b.order) && b.order[waiting].packet == nil {
		waiting++
	}
	now := len(s.queue) == 0 || waiting >= acksAtOnce
	b.mu.Unlock()
	if now {
		b.flush()
	}
}

// refused records that s has not accepted m, and ends.
func (b *inbox) refused(s *subscription, m *message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.queue = append([]*message{m}, s.queue...)
}

// close wakes all waiters.
func (b *inbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.freedSpace()
	for _, s := range b.subs {
		s.wake.Ring()
	}
}

// matches reports whether a topic matches a filter of this client, in which "+" matches one level.
func matches(filter, topic string) bool {
	if shared, ok := strings.CutPrefix(filter, "$share/"); ok {
		_, filter, _ = strings.Cut(shared, "/")
	}
	for {
		f, restFilter, moreFilter := strings.Cut(filter, "/")
		t, restTopic, moreTopic := strings.Cut(topic, "/")
		if f != "+" && f != t || moreFilter != moreTopic {
			return false
		}
		if !moreFilter {
			return true
		}
		filter, topic = restFilter, restTopic
	}
}
