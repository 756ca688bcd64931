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
	// connectBytes bound CONNECT, which is read of everybody.
	connectBytes = 4 << 10
	// smallBytes bound all that is neither CONNECT nor PUBLISH.
	smallBytes = 64 << 10
	// firstBytes is what is given to a packet before more of it has come; it then doubles.
	firstBytes = 32 << 10
	// overhead is what is kept of a packet beside its bytes.
	overhead = 2 << 10
	// writeBytes is how much is written at a time, each within writeTimeout. A peer that obeys
	// its own Receive Maximum reads all the time.
	writeBytes   = 64 << 10
	writeTimeout = 30 * time.Second
)

// wire reads and writes packets. One goroutine reads, one writes.
type wire struct {
	net.Conn
	conn *listener.Connection
	// most bounds a packet of the peer, silence is how long it may say nothing, and within is
	// how long the rest of a packet may take; the reader's.
	most                int
	idleTimeout, within time.Duration
	// sawConnect: CONNECT was read.
	sawConnect bool
	// bodies were begun.
	bodies atomic.Uint32
}

// packet is what the peer sent.
type packet struct {
	header byte
	body   []byte
	// call counts it as long as it is being served; nil but for PUBLISH.
	call *listener.Body
	// refusal is why it is not served, and most of it was not even read.
	refusal error
}

func (p *packet) kind() byte { return p.header >> 4 }

// done gives back what the packet used.
func (p *packet) done() {
	if p.call != nil {
		p.call.End()
	}
}

// errSilent ends a connection of which nothing is heard.
var errSilent = violated(property.KeepAliveTimeout, "nothing came for one and a half times the keep alive")

// errNoMQTT ends a connection on which something else is spoken.
var errNoMQTT = errors.New("the first packet is no CONNECT")

// read reads one packet. What the peer announces costs nothing before it comes.
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
		return nil, violated(property.PacketTooLarge, "a packet has %d bytes, at most %d are taken", length, most)
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
	return p, w.conn.InTime()
}

// bound is how long a packet may be.
func (w *wire) bound(kind byte) int {
	switch kind {
	case packets.Connect:
		return connectBytes
	case packets.Publish:
		return w.most
	}
	return smallBytes
}

// length is that of the rest of a packet.
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

// publish reads a PUBLISH, if its peer may have it served now.
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

// skip reads a packet that is refused; its beginning, which says what to answer, is kept. To
// read it costs almost as much as to serve it, so nobody may go on like that for long.
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
	if err := w.conn.InTime(); err != nil {
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
