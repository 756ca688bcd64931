package mqtt

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// writeTimeout is the maximum time without progress of a write before the connection counts as dead. It applies
	// to pieces of writePiece bytes, so that a large packet may be slow.
	writeTimeout = 20 * time.Second
	writePiece   = 32 << 10
	// lastWords is how long a failed write waits for the reader. The reader may still find the broker's reason in
	// data that arrived before the connection broke.
	lastWords = time.Second
	// maxOther is the size of the largest packet other than PUBLISH, maxProperties that of the properties of a
	// PUBLISH, in bytes. Decoded, they need a multiple of that memory.
	maxOther      = 1 << 20
	maxProperties = 1 << 20
)

// Types of MQTT packets that this file handles.
const (
	typeConnack  = 2
	typePublish  = 3
	typePuback   = 4
	typePubcomp  = 7
	typeSuback   = 9
	typeUnsuback = 11
	typePingresp = 13
	typeDisconn  = 14
)

// emptied replaces properties and payload of a PUBLISH that is too large.
const emptied = "\x00too large"

// errForeign is the error about bytes that are not from an MQTT broker.
var errForeign = errors.New("it sent data that is not a packet of an MQTT broker")

// stream is the connection below paho.
//
// Reading checks the beginning of each packet, because paho allocates any announced length. Packets above the
// announced limit do not reach paho. A PUBLISH that is too large is emptied, not rejected. Otherwise, on a
// broker that ignores the limit, any client could end the connection repeatedly.
//
// Writing joins the pieces that paho writes into packets, and the packets of concurrent writers into one write,
// with deadlines. paho calls Lock and Unlock around a packet.
type stream struct {
	net.Conn
	maxPacket int
	// onReceive is called when data arrived, even a piece of a large packet.
	onReceive func()

	r        *bufio.Reader
	welcomed bool   // the CONNACK, which comes first, has begun
	head     []byte // of the packet that is being read: the bytes already checked
	rest     int    // bytes of that packet that follow head
	tooBig   func(topic string, size int)
	stopped  atomic.Bool // closed by this side
	leaving  atomic.Bool // this side is about to close it

	writers atomic.Int32 // number of writers that wait for the lock
	writing sync.Mutex
	w       *bufio.Writer

	mu    sync.Mutex
	cause error // the first reason of failure
}

func newStream(c net.Conn, maxPacket int, tooBig func(topic string, size int)) *stream {
	s := &stream{Conn: c, maxPacket: maxPacket, tooBig: tooBig, onReceive: func() {}}
	s.r, s.w = bufio.NewReaderSize(noted{s}, 16<<10), bufio.NewWriterSize(pieces{s}, 16<<10)
	return s
}

// noted calls onReceive when data arrives.
type noted struct{ s *stream }

func (r noted) Read(p []byte) (int, error) {
	n, err := r.s.Conn.Read(p)
	if n > 0 {
		r.s.onReceive()
	}
	return n, err
}

// pieces writes in pieces, each with its own deadline.
type pieces struct{ s *stream }

func (w pieces) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		patience := writeTimeout
		if w.s.leaving.Load() {
			patience = lastWords
		}
		_ = w.s.Conn.SetWriteDeadline(time.Now().Add(patience)) // fails on a closed connection, as the write does
		var written int
		written, err = w.s.Conn.Write(p[n:min(len(p), n+writePiece)])
		n += written
	}
	return n, err
}

// Read implements [net.Conn].
func (s *stream) Read(p []byte) (n int, err error) {
	if len(s.head) == 0 && s.rest == 0 {
		if err := s.begin(); err != nil {
			s.failed(err)
			return 0, err
		}
	}
	if len(s.head) > 0 {
		n = copy(p, s.head)
		s.head = s.head[n:]
		return n, nil
	}
	n, err = s.r.Read(p[:min(len(p), s.rest)])
	s.rest -= n
	if err != nil {
		s.failed(err)
	}
	return n, err
}

// begin reads and checks the beginning of the next packet.
func (s *stream) begin() error {
	first, err := s.r.ReadByte()
	if err != nil {
		return err
	}
	if !s.welcomed && first != typeConnack<<4 {
		return errForeign
	}
	s.welcomed = true
	length, err := s.length()
	if err != nil {
		return unexpected(err)
	}
	s.head = binary.AppendUvarint(append(s.head[:0], first), uint64(length)) // the encoding equals that of MQTT
	s.rest = length
	switch first >> 4 {
	case typePublish:
		return unexpected(s.publish(first, length))
	case typeConnack, typeSuback, typeUnsuback, typePingresp, typeDisconn:
	default:
		if t := first >> 4; t < typePuback || t > typePubcomp {
			return errForeign
		}
	}
	if length > maxOther {
		return fmt.Errorf("%w: one of type %d with %d bytes", errForeign, first>>4, length)
	}
	return nil
}

// unexpected returns the error for an end inside a packet.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// length reads the length of a packet, at most four bytes.
func (s *stream) length() (n int, err error) {
	for shift := 0; shift < 28; shift += 7 {
		b, err := s.r.ReadByte()
		if err != nil {
			return 0, err
		}
		n |= int(b&0x7f) << shift
		if b < 0x80 {
			return n, nil
		}
	}
	return 0, errForeign
}

// publish checks the topic of a PUBLISH and the length of its properties, and empties the packet if it is too
// large.
func (s *stream) publish(first byte, length int) error {
	var size [2]byte
	if _, err := io.ReadFull(s.r, size[:]); err != nil {
		return err
	}
	fixed := int(binary.BigEndian.Uint16(size[:]))
	topic := len(s.head) + 2
	if first&0x06 != 0 {
		fixed += 2 // the packet id
	}
	if 2+fixed > length {
		return errForeign
	}
	s.head = append(append(s.head, size[:]...), make([]byte, fixed)...)
	if _, err := io.ReadFull(s.r, s.head[topic:]); err != nil {
		return err
	}
	properties, err := s.length()
	if err != nil {
		return err
	}
	end := len(s.head)
	s.head = binary.AppendUvarint(s.head, uint64(properties)) // the value is not negative
	if s.rest = length - 2 - fixed - (len(s.head) - end); properties > s.rest {
		return errForeign
	}
	if length <= s.maxPacket && properties <= maxProperties {
		return nil
	}
	if _, err := s.r.Discard(s.rest); err != nil {
		return err
	}
	s.rest = 0
	s.tooBig(string(s.head[topic:topic+int(binary.BigEndian.Uint16(size[:]))]), length)
	variable := append(append([]byte{}, s.head[topic-2:end]...), 0) // no properties
	s.head = binary.AppendUvarint([]byte{first}, uint64(len(variable)+len(emptied)))
	s.head = append(append(s.head, variable...), emptied...)
	return nil
}

// Lock begins a packet.
func (s *stream) Lock() {
	s.writers.Add(1)
	s.writing.Lock()
	s.writers.Add(-1)
}

// Write implements [net.Conn] between Lock and Unlock.
func (s *stream) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	if err != nil {
		s.broke(err)
	}
	return n, err
}

// Unlock ends a packet. It sends the packet, unless another writer waits; that writer sends it too.
func (s *stream) Unlock() {
	if s.writers.Load() == 0 {
		if err := s.w.Flush(); err != nil {
			s.broke(err)
		}
	}
	s.writing.Unlock()
}

// leave shortens the deadline of writers that wait for a broker which reads nothing.
func (s *stream) leave() {
	s.leaving.Store(true)
	_ = s.Conn.SetWriteDeadline(time.Now().Add(lastWords)) // fails if it is closed already
}

// broke ends a connection after a failed write, because a partly sent packet cannot be recalled.
func (s *stream) broke(err error) {
	time.AfterFunc(lastWords, func() { s.fail(err) })
}

// fail stores the reason and closes the connection, which makes paho end.
func (s *stream) fail(err error) {
	s.failed(err)
	_ = s.Conn.Close() // the reason is already known
}

// failed stores the first reason. A read error after this side closed is no reason.
func (s *stream) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause == nil && !s.stopped.Load() {
		s.cause = err
	}
}

// failure returns the reason, nil if there is none.
func (s *stream) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// Close implements [net.Conn].
func (s *stream) Close() error {
	s.stopped.Store(true)
	return s.Conn.Close()
}
