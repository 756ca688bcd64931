//go:build linux

package attack

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sys/unix"

	"github.com/hawser-io/hawser/internal/pki"
)

// attacker is where attacks come from: another address of this machine than that
// of the fleet.
const attacker = "127.0.0.2"

// load is what an attacker offered.
type load struct {
	mu sync.Mutex
	n  map[string]int64
}

func (l *load) add(what string, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n == nil {
		l.n = map[string]int64{}
	}
	l.n[what] += n
}

// target is the program under attack.
type target struct {
	addr  string
	pki   pki.Dir
	load  *load
	token string // goes with each call, "" for none
	// real: it is the broker, not the sink, so answers can be waited for.
	real bool
}

// tcp opens a connection.
func (t target) tcp(ctx context.Context) (net.Conn, error) {
	d := net.Dialer{Timeout: 2 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(attacker)}, Control: reuse}
	c, err := d.DialContext(ctx, "tcp", t.addr)
	if err == nil {
		t.load.add("connections", 1)
	}
	return c, err
}

// reuse lets an attacker open as many connections, one after the other, as it can. Its ports are free again at
// once, and count separately for each target.
func reuse(_, _ string, raw syscall.RawConn) error {
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = errors.Join(
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1),
			unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
		)
	})
	return errors.Join(err, failed)
}

// secure opens a connection with TLS. The sink does not shake hands: what would be
// encrypted is sent in clear.
func (t target) secure(ctx context.Context, config *tls.Config) (net.Conn, error) {
	raw, err := t.tcp(ctx)
	if err != nil || !t.real {
		return raw, err
	}
	c := tls.Client(raw, config)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := c.HandshakeContext(ctx); err != nil {
		_ = raw.Close() // it is of no use any more
		return nil, err
	}
	t.load.add("handshakes", 1)
	return c, nil
}

func (t target) config(identified bool) *tls.Config {
	if identified {
		return t.configOf(pki.Agent, evil)
	}
	// Whose certificate the broker has does not matter to an attacker.
	return &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}} //nolint:gosec // see above
}

func (t target) configOf(role pki.Role, name string) *tls.Config {
	pair, err := tls.LoadX509KeyPair(t.pki.Cert(role, name), t.pki.Key(role, name))
	if err != nil {
		panic(err) // the stage made them
	}
	c := t.config(false)
	c.Certificates = []tls.Certificate{pair}
	return c
}

// wire speaks HTTP/2 as an attacker does: frame by frame. It keeps to the
// windows that the other side gives, for what is beyond them is refused anyway.
type wire struct {
	net.Conn
	load  *load
	ended context.Context // ends with the connection
	token string          // goes with each call, "" for none

	mu      sync.Mutex
	framer  *http2.Framer
	headers *hpack.Encoder
	block   bytes.Buffer
	next    uint32
	conn    int64            // window of the connection
	first   int64            // window that a stream begins with
	streams map[uint32]int64 // windows of the streams
	more    chan struct{}    // a window grew
}

// open speaks the preface; it reads until the connection ends.
func (t target) open(ctx context.Context, identified bool) (*wire, error) {
	return t.openWith(ctx, t.config(identified))
}

func (t target) openWith(ctx context.Context, config *tls.Config) (*wire, error) {
	c, err := t.secure(ctx, config)
	if err != nil {
		return nil, err
	}
	ended, end := context.WithCancel(ctx)
	w := &wire{
		Conn: c, load: t.load, ended: ended, token: t.token, framer: http2.NewFramer(c, c), next: 1,
		conn: 65535, first: 65535, streams: map[uint32]int64{}, more: make(chan struct{}, 1),
	}
	if !t.real {
		w.conn, w.first = 1<<40, 1<<40 // the sink sends no window
	}
	w.headers = hpack.NewEncoder(&w.block)
	context.AfterFunc(ctx, func() { _ = c.Close() })
	if _, err = c.Write([]byte(http2.ClientPreface)); err == nil {
		err = w.framer.WriteSettings()
	}
	if err != nil {
		end()
		_ = c.Close() // it is of no use any more
		return nil, err
	}
	go w.read(end)
	return w, nil
}

func (w *wire) read(end func()) {
	defer end()
	for {
		f, err := w.framer.ReadFrame()
		if err != nil {
			w.load.add("connections ended by the broker", 1)
			return
		}
		w.mu.Lock()
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if v, ok := f.Value(http2.SettingInitialWindowSize); ok {
				w.first = int64(v)
			}
			if !f.IsAck() {
				_ = w.framer.WriteSettingsAck() // the next read says that it failed
			}
		case *http2.WindowUpdateFrame:
			if f.StreamID == 0 {
				w.conn += int64(f.Increment)
			} else if _, ok := w.streams[f.StreamID]; ok {
				w.streams[f.StreamID] += int64(f.Increment)
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				_ = w.framer.WritePing(true, f.Data) // as above
			}
		case *http2.RSTStreamFrame:
			w.load.add("calls reset", 1)
			delete(w.streams, f.StreamID)
		case *http2.HeadersFrame:
			if f.StreamEnded() {
				w.load.add("calls answered", 1)
				delete(w.streams, f.StreamID)
			}
		}
		w.mu.Unlock()
		select {
		case w.more <- struct{}{}:
		default:
		}
	}
}

// call begins a call and returns its stream.
func (w *wire) call(method string) (uint32, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.block.Reset()
	fields := [][2]string{
		{":method", "POST"}, {":scheme", "https"}, {":path", method}, {":authority", "broker"},
		{"content-type", "application/grpc"}, {"te", "trailers"},
	}
	if w.token != "" {
		fields = append(fields, [2]string{"authorization", "Bearer " + w.token})
	}
	for _, f := range fields {
		if err := w.headers.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			return 0, err
		}
	}
	id := w.next
	w.next += 2
	w.streams[id] = w.first
	w.load.add("calls", 1)
	return id, w.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: w.block.Bytes(), EndHeaders: true})
}

// message is the prefix of a message of n bytes.
func message(n int) []byte { return binary.BigEndian.AppendUint32([]byte{0}, uint32(n)) }

// errAnswered: the call is over, so there is no receiver.
var errAnswered = os.ErrClosed

// send sends a part of a call's body, of at most 16 KiB.
func (w *wire) send(id uint32, b []byte) error {
	if err := w.spend(id, len(b)); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.load.add("body bytes", int64(len(b)))
	return w.framer.WriteData(id, false, b)
}

// spend waits until the windows allow n bytes.
func (w *wire) spend(id uint32, n int) error {
	for {
		w.mu.Lock()
		window, running := w.streams[id]
		enough := window >= int64(n) && w.conn >= int64(n)
		if running && enough {
			w.streams[id] -= int64(n)
			w.conn -= int64(n)
		}
		w.mu.Unlock()
		switch {
		case !running:
			return errAnswered
		case enough:
			return nil
		}
		select {
		case <-w.more:
		case <-w.ended.Done():
			return net.ErrClosed
		}
	}
}
