package mqtt

import (
	"context"
	"errors"
	"io"
	"math"
	"sync"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho/log"
	"github.com/eclipse/paho.golang/paho/session"

	"github.com/hawser-io/hawser/pkg/transport/mqtt/property"
)

// errLost is the error of a call whose connection ended; the Conn has the reason.
var errLost = session.ErrNoConnection

// errProtocol is the error about a broker that violates MQTT 5.
var errProtocol = errors.New("it does not keep to MQTT 5")

// sessionState is the state of one MQTT connection: unanswered requests, and received messages that are not
// accepted. It replaces paho's session state, which has three faults. That state outlives a connection and
// retransmits packets that may never fit; its counts are then wrong. It also leaves calls waiting whose answer
// cannot arrive.
type sessionState struct {
	stream *stream
	inbox  *inbox
	window window
	// managed: the broker is a managed broker, and publishes are rate limited.
	managed bool
	limiter publishLimiter
	// answersAll: the broker is a Hawser broker, which answers a PUBLISH that is too large and does not end the
	// connection.
	answersAll bool

	mu         sync.Mutex
	requests   map[uint16]request // by packet id
	last       uint16             // the last assigned packet id
	ended      bool
	disconnect *packets.Disconnect // of the broker, nil if there was none
	over       chan struct{}       // closed when ended
}

var _ session.SessionManager = (*sessionState)(nil)

// request is an unanswered request to the broker.
type request struct {
	kind   byte // of the answer
	answer chan<- packets.ControlPacket
	size   int // of a PUBLISH
}

func newSessionState(s *stream, in *inbox) *sessionState {
	return &sessionState{stream: s, inbox: in, requests: map[uint16]request{}, over: make(chan struct{})}
}

// These are the in-flight limits. With an OCM broker they apply even if it allows more: all known OCM brokers
// accept this much. A Hawser broker announces its limit; hawserInFlight is the maximum.
const (
	defaultInFlight, defaultInFlightBytes = 20, 64 << 10
	hawserInFlight                        = 1024
)

// ConAckReceived implements [session.SessionManager].
func (l *sessionState) ConAckReceived(_ io.Writer, _ *packets.Connect, ca *packets.Connack) error {
	count := math.MaxUint16
	if ca.Properties.ReceiveMaximum != nil {
		count = int(*ca.Properties.ReceiveMaximum)
	}
	if count == 0 {
		return errProtocol
	}
	if _, hawser := property.Announced(userProperties(ca.Properties.User)); hawser {
		l.window.open(min(count, hawserInFlight), 0)
		l.answersAll = true
		return nil
	}
	l.inbox.keepUnaccepted()
	l.managed = isManaged(ca.Properties)
	l.window.open(min(count, defaultInFlight), defaultInFlightBytes)
	return nil
}

// AddToSession implements [session.SessionManager]. It assigns a packet id; a PUBLISH first waits for space in
// the window. answer receives the answer, or an empty packet if there will be none.
func (l *sessionState) AddToSession(ctx context.Context, packet session.Packet, answer chan<- packets.ControlPacket) error {
	r := request{answer: answer}
	switch p := packet.(type) {
	case *packets.Publish:
		r.kind, r.size = packets.PUBACK, publishSize(p)
		if err := l.window.acquire(ctx, r.size); err != nil {
			return err
		}
		if l.managed {
			if err := l.limiter.wait(ctx, r.size, l.over); err != nil {
				l.window.release(r.size)
				return err
			}
		}
	case *packets.Subscribe:
		r.kind = packets.SUBACK
	case *packets.Unsubscribe:
		r.kind = packets.UNSUBACK
	default:
		return errProtocol
	}
	id, err := l.register(r)
	if err != nil {
		if r.size > 0 {
			l.window.release(r.size)
		}
		return err
	}
	packet.SetIdentifier(id)
	return nil
}

func (l *sessionState) register(r request) (uint16, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return 0, errLost
	}
	if len(l.requests) == math.MaxUint16 {
		return 0, session.ErrPacketIdentifiersExhausted
	}
	for {
		if l.last++; l.last == 0 {
			l.last = 1
		}
		if _, taken := l.requests[l.last]; !taken {
			l.requests[l.last] = r
			return l.last, nil
		}
	}
}

// PacketReceived implements [session.SessionManager].
func (l *sessionState) PacketReceived(recv *packets.ControlPacket, _ chan<- *packets.Publish) error {
	switch p := recv.Content.(type) {
	case *packets.Publish:
		if p.QoS != 1 || p.PacketID == 0 {
			return l.violated()
		}
		l.inbox.push(p)
		return nil
	case *packets.Puback, *packets.Suback, *packets.Unsuback:
		return l.answered(recv)
	}
	return l.violated() // PUBREC, PUBREL and PUBCOMP are of QoS 2
}

func (l *sessionState) answered(recv *packets.ControlPacket) error {
	l.mu.Lock()
	id := recv.PacketID()
	r, known := l.requests[id]
	good := !known || r.kind == recv.Type
	if known && good {
		delete(l.requests, id)
	}
	l.mu.Unlock()
	switch {
	case !good:
		return l.violated()
	case known: // an answer without a request is ignored
		if r.size > 0 {
			l.window.release(r.size)
		}
		r.answer <- *recv // has capacity for one
	}
	return nil
}

func (l *sessionState) violated() error {
	l.stream.fail(errProtocol)
	return errProtocol
}

// ConnectionLost implements [session.SessionManager]: it ends all calls. paho calls it at once for the broker's
// DISCONNECT, and when the connection is closed.
func (l *sessionState) ConnectionLost(disconnect *packets.Disconnect) error {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return nil
	}
	l.ended, l.disconnect = true, disconnect
	requests := l.requests
	l.requests = map[uint16]request{}
	close(l.over)
	l.mu.Unlock()

	l.window.close()
	l.inbox.close()
	largest := largestOf(requests)
	for id, r := range requests {
		if !l.answersAll && disconnect != nil && id == largest && property.Reason(disconnect.ReasonCode) == property.PacketTooLarge {
			// At most one of the packets in flight was too large. Without this its sender would publish it again on each
			// later connection.
			r.answer <- packets.ControlPacket{FixedHeader: packets.FixedHeader{Type: packets.PUBACK}, Content: &packets.Puback{
				PacketID: id, ReasonCode: disconnect.ReasonCode, Properties: &packets.Properties{},
			}}
			continue
		}
		r.answer <- packets.ControlPacket{}
	}
	return nil
}

// largestOf returns the packet id of the largest PUBLISH, 0 if there is none.
func largestOf(requests map[uint16]request) (id uint16) {
	for i, r := range requests {
		if r.size > requests[id].size {
			id = i
		}
	}
	return id
}

// end returns the broker's DISCONNECT, nil if there was none.
func (l *sessionState) end() *packets.Disconnect {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.disconnect
}

// Ack implements [session.SessionManager]. The inbox acknowledges.
func (l *sessionState) Ack(*packets.Publish) error { return nil }

// Close implements [session.SessionManager].
func (l *sessionState) Close() error { return l.ConnectionLost(nil) }

// SetErrorLogger implements [session.SessionManager].
func (l *sessionState) SetErrorLogger(log.Logger) {}

// SetDebugLogger implements [session.SessionManager].
func (l *sessionState) SetDebugLogger(log.Logger) {}
