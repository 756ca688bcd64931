package mqtt

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/hawser-io/hawser/pkg/codec"
)

// slowConn is a slow connection: each piece of a write takes some time, and reads return single bytes. It uses
// no clock of its own.
type slowConn struct {
	net.Conn
	deadlines int
	written   []int
	in        bytes.Buffer
}

func (l *slowConn) SetWriteDeadline(time.Time) error { l.deadlines++; return nil }

func (l *slowConn) Write(p []byte) (int, error) {
	l.written = append(l.written, len(p))
	return len(p), nil
}

func (l *slowConn) Read(p []byte) (int, error) { return l.in.Read(p[:1]) }

// TestStream_SlowConnection: the deadline is about progress, and each piece of a large packet counts as
// progress. Otherwise a large work would never arrive over a slow connection, and would be sent again for ever.
func TestStream_SlowConnection(t *testing.T) {
	line := &slowConn{}
	s := newStream(line, 1<<20, nil)
	if _, err := publishPacket(1, specTopic, codec.Message{Payload: make([]byte, 10*writePiece)}).WriteTo(s); err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, n := range line.written {
		if total += n; n > writePiece {
			t.Errorf("%d bytes were written at once", n)
		}
	}
	if line.deadlines != len(line.written) || total < 10*writePiece {
		t.Errorf("%d deadlines for %d pieces with %d bytes", line.deadlines, len(line.written), total)
	}

	line.in.Write([]byte{typeConnack << 4, 3, 0, 0, 0})
	if _, err := packets.ReadPacket(s); err != nil {
		t.Fatal(err)
	}
	if _, err := publishPacket(1, specTopic, codec.Message{Payload: make([]byte, 1000)}).WriteTo(&line.in); err != nil {
		t.Fatal(err)
	}
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	p := &pinger{stalled: func() bool { return false }, sent: start, received: start}
	now := start
	s.onReceive = func() { now = now.Add(time.Second); p.received = now } // one byte per second
	for line.in.Len() > 10 {
		if _, err := io.ReadFull(s, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		due, err := p.look(now, probeAfter)
		if err != nil {
			t.Fatalf("with %d bytes to come: %v", line.in.Len(), err)
		}
		if due {
			p.sent = now
		}
	}
}
