package mqtt

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/hawser-io/hawser/internal/broker/authz"
	"github.com/hawser-io/hawser/internal/broker/listener"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/property"
)

const (
	// connectBytes is the maximum size of CONNECT, which is read before authentication.
	connectBytes = 4 << 10
	// smallBytes is the maximum size of packets other than CONNECT and PUBLISH.
	smallBytes = 64 << 10
	// firstBytes is the first allocation for a PUBLISH. It doubles as data arrives.
	firstBytes = 32 << 10
	// overhead is the memory of a packet in addition to its bytes.
	overhead = 2 << 10
	// writeBytes is the maximum size of one write, which must end within writeTimeout. A healthy peer reads all the
	// time, because its Receive Maximum limits the data in flight.
	writeBytes   = 64 << 10
	writeTimeout = 30 * time.Second
)

// wire reads and writes packets. One goroutine reads, one writes.
type wire struct {
	net.Conn
	conn *listener.Connection
	// most is the maximum size of a PUBLISH. idleTimeout is the maximum time between two packets, within the
	// maximum time for the rest of a packet. Only the reader uses them.
	most                int
	idleTimeout, within time.Duration
	// sawConnect is true after CONNECT was read.
	sawConnect bool
	// bodies is the number of calls so far; it numbers the bodies.
	bodies atomic.Uint32
}

// packet is one packet of the peer.
type packet struct {
	header byte
	body   []byte
	// call counts a PUBLISH while it is served; nil for other packets.
	call *listener.Body
	// refusal is the error of a rejected PUBLISH, of which only the beginning was read.
	refusal error
}

func (p *packet) kind() byte { return p.header >> 4 }

// done releases what the packet used.
func (p *packet) done() {
	if p.call != nil {
		p.call.End()
	}
}

// errSilent ends a connection without packets for 1.5 times its keep alive.
var errSilent = violated(property.KeepAliveTimeout, "no packet arrived within one and a half times the keep alive")

// errNoMQTT ends a connection with another protocol.
var errNoMQTT = errors.New("the first packet is not CONNECT")

// read reads one packet. Memory for a PUBLISH grows as its data arrives; other packets are small.
func (w *wire) read() (*packet, error) {
	if err := w.SetReadDeadline(time.Now().Add(w.idleTimeout)); err != nil {
		return nil, err
	}
	var first [1]byte
	if err := w.fill(first[:]); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = errSilent
		}
		return nil, err
	}
	if err := w.SetReadDeadline(time.Now().Add(w.within)); err != nil {
		return nil, err
	}
	length, err := w.length()
	if err != nil {
		return nil, err
	}
	p := &packet{header: first[0]}
	if !w.sawConnect && p.kind() != packets.Connect {
		return nil, errNoMQTT
	}
	switch most := w.bound(p.kind()); {
	case length > most:
		return nil, violated(property.PacketTooLarge, "a packet has %d bytes, at most %d are accepted", length, most)
	case p.kind() == packets.Publish:
		err = w.publish(p, length)
	default:
		p.body = make([]byte, length)
		err = w.fill(p.body)
	}
	if err != nil {
		p.done()
		return nil, err
	}
	return p, w.conn.CheckLifetime()
}

// bound returns the maximum size of a packet.
func (w *wire) bound(kind byte) int {
	switch kind {
	case packets.Connect:
		return connectBytes
	case packets.Publish:
		return w.most
	}
	return smallBytes
}

// length reads the length of the rest of a packet.
func (w *wire) length() (int, error) {
	var b [4]byte
	for i := range b {
		if err := w.fill(b[i : i+1]); err != nil {
			return 0, err
		}
		if b[i]&0x80 == 0 {
			n, _, err := variable(b[:i+1])
			return n, err
		}
	}
	return 0, malformed("%v", errVariable)
}

func (w *wire) fill(b []byte) error {
	_, err := io.ReadFull(w.Conn, b)
	return err
}

// publish reads a PUBLISH. If its peer has too many calls, it sets refusal instead.
func (w *wire) publish(p *packet, length int) error {
	call := w.conn.NewBody(w.bodies.Add(1), false)
	if err := w.conn.Begin(listener.Unary, call); err != nil {
		w.conn.Refused(authz.Publish, listener.ReasonOf(err), err)
		p.refusal = err
		return errors.Join(w.conn.ChargeRefusedCall(1), w.skip(p, length))
	}
	p.call = call
	for have := 0; have < length; {
		next := min(max(have, firstBytes), length-have)
		call.Grow(int64(next)+overhead, false)
		if have == 0 {
			p.body = make([]byte, next)
		} else {
			p.body = append(make([]byte, 0, have+next), p.body...)[:have+next]
		}
		if err := w.fill(p.body[have:]); err != nil {
			return err
		}
		have += next
	}
	call.Grow(0, true)
	return nil
}

// skip discards a rejected packet, except for its beginning, which the answer needs. Reading it costs almost as
// much as serving it. So its bytes are charged, and too many of them end the connection.
func (w *wire) skip(p *packet, length int) error {
	p.body = make([]byte, min(length, mostTopicBytes+4))
	if err := w.fill(p.body); err != nil {
		return err
	}
	if err := w.conn.ChargeClosedStream(int64(length)); err != nil {
		return err
	}
	_, err := io.CopyN(io.Discard, w.Conn, int64(length-len(p.body)))
	return err
}

// write writes packets.
func (w *wire) write(b []byte) error {
	if err := w.conn.CheckLifetime(); err != nil {
		return err
	}
	for len(b) > 0 {
		if err := w.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return err
		}
		n, err := w.Write(b[:min(len(b), writeBytes)])
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
