package mqtt

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/eclipse/paho.golang/packets"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// TestPublishSize_EqualsBytesOnWire: the size equals the bytes on the wire, which a broker's limit is about.
func TestPublishSize_EqualsBytesOnWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a-zé]{0,200}`)
		p := &packets.Publish{
			QoS: byte(rapid.IntRange(0, 1).Draw(t, "qos")), PacketID: 7, Topic: text.Draw(t, "topic"),
			Payload:    make([]byte, rapid.SampledFrom([]int{0, 1, 100, 127, 128, 16_000, 16_383, 16_384, 70_000}).Draw(t, "payload")),
			Properties: &packets.Properties{ContentType: text.Draw(t, "content type")},
		}
		for range rapid.IntRange(0, 20).Draw(t, "properties") {
			p.Properties.User = append(p.Properties.User, packets.User{Key: text.Draw(t, "key"), Value: text.Draw(t, "value")})
		}
		var b bytes.Buffer
		if _, err := p.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		if got := publishSize(p); got != b.Len() {
			t.Fatalf("%d bytes, on the wire there are %d", got, b.Len())
		}
	})
}

// TestMatches: filters without "#" match as MQTT defines.
func TestMatches(t *testing.T) {
	for _, c := range []struct {
		filter, topic string
		want          bool
	}{
		{"a/b", "a/b", true}, {"a/+", "a/b", true}, {"+/+", "a/b", true}, {"$share/g/a/+", "a/b", true},
		{"a/+", "a", false}, {"a/+", "a/b/c", false}, {"a/b", "a/c", false}, {"+", "", true}, {"a/+", "a/", true}, {"a", "a/b", false},
	} {
		if matches(c.filter, c.topic) != c.want {
			t.Errorf("%s of %s: want %v", c.topic, c.filter, c.want)
		}
	}
}

// inboxModel is a simple model of an inbox.
type inboxModel struct {
	t        *rapid.T
	in       *inbox
	next     uint16
	subs     []*subscription
	held     map[*subscription]*message // the message in each handler
	accepted map[uint16]bool
	dropped  map[uint16]bool
	acked    []uint16
}

// TestInbox_AnyHistory: for any sequence of subscriptions, messages are acknowledged once and in order of
// arrival. While the broker stores messages, no unaccepted one is acknowledged. None is forgotten.
func TestInbox_AnyHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &inboxModel{t: t, held: map[*subscription]*message{}, accepted: map[uint16]bool{}, dropped: map[uint16]bool{}}
		keeps := rapid.Bool().Draw(t, "keeps")
		m.in = &inbox{
			acknowledge: func(ids []uint16) { m.acked = append(m.acked, ids...) },
			dropped:     func(p *packets.Publish) { m.dropped[p.PacketID] = true },
		}
		if keeps {
			m.in.keepUnaccepted()
		}
		t.Repeat(map[string]func(*rapid.T){
			"push":      m.push,
			"subscribe": m.subscribe,
			"leave":     m.leave,
			"take":      m.take,
			"accept":    m.accept,
			"":          func(*rapid.T) { m.check(keeps) },
		})
		// A last subscription receives all remaining messages.
		for len(m.subs) > 0 {
			m.remove(m.subs[0])
		}
		s := m.in.add([]string{"+"})
		for {
			msg, _, ok := m.in.next(s)
			if !ok {
				break
			}
			m.accepted[msg.id] = true
			m.in.handled(s, msg)
		}
		if n := int(m.next); len(m.acked) != n || len(m.in.order) > 0 || m.in.bytes != 0 {
			t.Fatalf("%d of %d are acknowledged, %d are left with %d bytes", len(m.acked), n, len(m.in.order), m.in.bytes)
		}
	})
}

func (m *inboxModel) push(t *rapid.T) {
	m.next++
	m.in.push(&packets.Publish{QoS: 1, PacketID: m.next, Topic: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "topic"), Properties: &packets.Properties{}})
}

func (m *inboxModel) subscribe(t *rapid.T) {
	s := m.in.add([]string{rapid.SampledFrom([]string{"a", "b", "+"}).Draw(t, "filter")})
	if rapid.Bool().Draw(t, "ready") {
		m.in.accepted(s)
	}
	m.subs = append(m.subs, s)
}

func (m *inboxModel) leave(t *rapid.T) {
	if len(m.subs) > 0 {
		m.remove(rapid.SampledFrom(m.subs).Draw(t, "subscription"))
	}
}

func (m *inboxModel) remove(s *subscription) {
	if msg := m.held[s]; msg != nil {
		m.in.refused(s, msg)
		delete(m.held, s)
	}
	m.in.remove(s)
	m.subs = slices.DeleteFunc(m.subs, func(o *subscription) bool { return o == s })
}

func (m *inboxModel) take(t *rapid.T) {
	if len(m.subs) == 0 {
		return
	}
	s := rapid.SampledFrom(m.subs).Draw(t, "subscription")
	if m.held[s] != nil {
		return
	}
	if msg, p, ok := m.in.next(s); ok {
		if !matches(s.filters[0], p.Topic) {
			t.Fatalf("%s got %s", s.filters, p.Topic)
		}
		m.held[s] = msg
	}
}

func (m *inboxModel) accept(t *rapid.T) {
	if len(m.subs) == 0 {
		return
	}
	s := rapid.SampledFrom(m.subs).Draw(t, "subscription")
	if msg := m.held[s]; msg != nil {
		m.accepted[msg.id] = true
		m.in.handled(s, msg)
		delete(m.held, s)
	}
}

func (m *inboxModel) check(keeps bool) {
	for i, id := range m.acked {
		if int(id) != i+1 {
			m.t.Fatalf("acknowledged in the order %v", m.acked)
		}
		if keeps && !m.accepted[id] && !m.dropped[id] {
			m.t.Fatalf("%d is acknowledged without being accepted", id)
		}
	}
	if m.in.bytes < 0 {
		m.t.Fatalf("%d bytes", m.in.bytes)
	}
}

// TestWindow: space is granted in the order of requests, and a waiter that gives up blocks no other.
func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w window
		w.open(3, 100)
		var mu sync.Mutex
		var got []string // granted since the last check, in any order
		request := func(ctx context.Context, name string, size int) {
			go func() { // ends with the window
				if err := w.acquire(ctx, size); err != nil {
					name += " gives up"
				}
				mu.Lock()
				defer mu.Unlock()
				got = append(got, name)
			}()
			synctest.Wait()
		}
		want := func(names string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			slices.Sort(got)
			if d := cmp.Diff(strings.Fields(names), strings.Fields(strings.ReplaceAll(strings.Join(got, " "), " gives up", "!"))); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			got = nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		request(t.Context(), "a", 40)
		request(t.Context(), "b", 40)
		want("a b")
		request(ctx, "large", 200)
		request(t.Context(), "small", 10)
		want("") // a smaller one does not overtake
		cancel()
		want("large! small")
		request(t.Context(), "c", 1)
		w.release(40)
		want("c")
		request(t.Context(), "huge", 500)
		w.release(40)
		w.release(10)
		want("")
		w.release(1)
		want("huge") // the message is alone in the window
		request(t.Context(), "d", 1)
		w.close()
		want("d!")
		if err := w.acquire(t.Context(), 1); err == nil {
			t.Error("room on a connection that is over")
		}
		w.release(500) // a late release
	})
}
