package mqtt

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"

	"github.com/coder/websocket"

	"github.com/hawser-io/hawser/internal/broker/listener"
)

// webSockets makes WebSockets of connections on which HTTP is spoken. It is the listener of
// its server.
type webSockets struct {
	front  *Front
	server http.Server
	conns  chan *requesting
	done   chan struct{}
}

func newWebSockets(f *Front) *webSockets {
	w := &webSockets{front: f, conns: make(chan *requesting), done: make(chan struct{})}
	w.server = http.Server{
		Handler: http.HandlerFunc(w.upgrade), ReadHeaderTimeout: listener.HandshakeTimeout, MaxHeaderBytes: 8 << 10,
		ErrorLog: slog.NewLogLogger(f.cfg.Log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, requestingKey{}, c)
		},
	}
	w.server.SetKeepAlivesEnabled(false) // there is nothing to ask for a second time
	return w
}

// requesting is a connection on which HTTP is spoken. Its use ends when it is closed.
type requesting struct {
	net.Conn
	conn *listener.Connection
	once sync.Once
	over func()
}

// requestingKey is the key of a connection in the context of its requests.
type requestingKey struct{}

// Close implements net.Conn.
func (r *requesting) Close() error {
	r.once.Do(r.over)
	return r.Conn.Close()
}

// take serves a connection; it waits until the server has taken it.
func (w *webSockets) take(raw net.Conn, connection *listener.Connection) {
	w.front.serving.Add(1)
	r := &requesting{Conn: raw, conn: connection, over: func() {
		connection.Leave()
		w.front.serving.Done()
	}}
	select {
	case w.conns <- r:
	case <-w.done:
		_ = r.Close() // it was not begun
	}
}

// Accept implements net.Listener.
func (w *webSockets) Accept() (net.Conn, error) {
	select {
	case c := <-w.conns:
		return c, nil
	case <-w.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener; it is called once.
func (w *webSockets) Close() error {
	close(w.done)
	return nil
}

// Addr implements net.Listener.
func (w *webSockets) Addr() net.Addr { return &net.UnixAddr{Name: "websocket"} }

// upgrade is the handler of every path.
func (w *webSockets) upgrade(out http.ResponseWriter, r *http.Request) {
	c, ok := r.Context().Value(requestingKey{}).(*requesting)
	if !ok {
		return
	}
	// A page of another site must not use the certificate of a browser: that the origin is
	// that of the broker is checked by default.
	pinged := func(context.Context, []byte) bool { return c.conn.ChargeControlFrame() == nil }
	socket, err := websocket.Accept(out, r, &websocket.AcceptOptions{Subprotocols: []string{"mqtt"}, OnPingReceived: pinged})
	if err != nil {
		return // it was answered
	}
	if socket.Subprotocol() != "mqtt" {
		_ = socket.Close(websocket.StatusPolicyViolation, "the subprotocol mqtt is spoken here") // at worst it is closed already
		return
	}
	if !w.front.begin() {
		_ = socket.CloseNow() // it was not begun
		return
	}
	defer w.front.serving.Done()
	c.conn.Speaks(listener.WebSockets)
	frames := &framed{Conn: websocket.NetConn(context.Background(), socket, websocket.MessageBinary), socket: socket}
	over := make(chan struct{})
	w.front.arrive(frames, c.conn, func() { close(over) }).serve()
	<-over
}

// framed is a WebSocket as a stream of bytes.
type framed struct {
	net.Conn
	socket *websocket.Conn
}

// Close implements net.Conn: MQTT has said goodbye already.
func (f *framed) Close() error { return errors.Join(f.socket.CloseNow(), f.Conn.Close()) }
