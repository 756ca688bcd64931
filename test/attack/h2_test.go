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

// attacker is the address of attackers. It differs from the address of the fleet.
const attacker = "127.0.0.2"

// load counts what an attacker sent, by kind.
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
	token string // sent with each call, "" for none
	// real is true for the broker and false for the sink. Only the broker sends answers.
	real bool
}

// tcp opens a TCP connection.
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

// secure opens a connection with TLS. The sink has no TLS, so the data is sent to it in plain text.
func (t target) secure(ctx context.Context, config *tls.Config) (net.Conn, error) {
	raw, err := t.tcp(ctx)
	if err != nil || !t.real {
		return raw, err
	}
	c := tls.Client(raw, config)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := c.HandshakeContext(ctx); err != nil {
		_ = raw.Close() // the handshake failed
		return nil, err
	}
	t.load.add("handshakes", 1)
	return c, nil
}

func (t target) config(identified bool) *tls.Config {
	if identified {
		return t.configOf(pki.Agent, evil)
	}
	// An attacker does not verify the broker's certificate.
	return &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}} //nolint:gosec // see above
}

func (t target) configOf(role pki.Role, name string) *tls.Config {
	pair, err := tls.LoadX509KeyPair(t.pki.Cert(role, name), t.pki.Key(role, name))
	if err != nil {
		panic(err) // newStage has written the files
	}
	c := t.config(false)
	c.Certificates = []tls.Certificate{pair}
	return c
}

// wire sends single HTTP/2 frames, as an attacker does. It respects the flow-control windows, because a
// violation ends the connection at once.
type wire struct {
	net.Conn
	load  *load
	ended context.Context // ends with the connection
	token string          // sent with each call, "" for none

	mu      sync.Mutex
	framer  *http2.Framer
	headers *hpack.Encoder
	block   bytes.Buffer
	next    uint32
	conn    int64            // window of the connection
	first   int64            // initial window of a stream
	streams map[uint32]int64 // windows of the streams
	more    chan struct{}    // a window grew
}

// open sends the connection preface, and reads frames until the connection ends.
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
		_ = c.Close() // the preface failed
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
				_ = w.framer.WriteSettingsAck() // the next read returns the error
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

// message returns the gRPC prefix of a message of n bytes.
func message(n int) []byte { return binary.BigEndian.AppendUint32([]byte{0}, uint32(n)) }

// errAnswered: the call is over, so there is no receiver.
var errAnswered = os.ErrClosed

// send sends a part of a call's body, at most 16 KiB.
func (w *wire) send(id uint32, b []byte) error {
	if err := w.spend(id, len(b)); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.load.add("body bytes", int64(len(b)))
	return w.framer.WriteData(id, false, b)
}

// spend waits until the flow-control windows allow n bytes.
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
