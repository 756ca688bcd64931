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

// webSockets upgrades HTTP connections to WebSockets. It is the listener of its own HTTP server.
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
	w.server.SetKeepAlivesEnabled(false) // one request per connection
	return w
}

// requesting is an HTTP connection before its upgrade. Close releases its resources.
type requesting struct {
	net.Conn
	conn *listener.Connection
	once sync.Once
	over func()
}

// requestingKey is the context key of a request's connection.
type requestingKey struct{}

// Close implements net.Conn.
func (r *requesting) Close() error {
	r.once.Do(r.over)
	return r.Conn.Close()
}

// take passes a connection to the HTTP server. It blocks until the server has accepted it.
func (w *webSockets) take(raw net.Conn, connection *listener.Connection) {
	w.front.serving.Add(1)
	r := &requesting{Conn: raw, conn: connection, over: func() {
		connection.Leave()
		w.front.serving.Done()
	}}
	select {
	case w.conns <- r:
	case <-w.done:
		_ = r.Close() // the connection was not served
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

// Close implements net.Listener. It is called once.
func (w *webSockets) Close() error {
	close(w.done)
	return nil
}

// Addr implements net.Listener.
func (w *webSockets) Addr() net.Addr { return &net.UnixAddr{Name: "websocket"} }

// upgrade handles all paths.
func (w *webSockets) upgrade(out http.ResponseWriter, r *http.Request) {
	c, ok := r.Context().Value(requestingKey{}).(*requesting)
	if !ok {
		return
	}
	// A web page of another site must not use the certificate in a browser. By default the library checks that the
	// origin is the broker.
	pinged := func(context.Context, []byte) bool { return c.conn.ChargeControlFrame() == nil }
	socket, err := websocket.Accept(out, r, &websocket.AcceptOptions{Subprotocols: []string{"mqtt"}, OnPingReceived: pinged})
	if err != nil {
		return // the library has answered
	}
	if socket.Subprotocol() != "mqtt" {
		_ = socket.Close(websocket.StatusPolicyViolation, "use the subprotocol mqtt") // an error means: closed already
		return
	}
	if !w.front.begin() {
		_ = socket.CloseNow() // the connection was not served
		return
	}
	defer w.front.serving.Done()
	c.conn.SetTransport(listener.WebSockets)
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

// Close implements net.Conn. It sends no WebSocket close frame: MQTT has its own DISCONNECT.
func (f *framed) Close() error { return errors.Join(f.socket.CloseNow(), f.Conn.Close()) }
