package mqtt

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"golang.org/x/net/websocket"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/internal/dialing"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/property"
)

const (
	// qos is that of all publishes and subscriptions: at least once.
	qos = 1
	// noRetained: Retain Handling of subscriptions.
	noRetained = 2
	// sessionExpiry is how long a stock broker keeps what arrives for a party that is away. It is
	// what AWS IoT Core and Azure Event Grid give by default.
	sessionExpiry = time.Hour
	// willDelay is that of a Dialer. A party that comes back within it was not gone.
	willDelay = 30 * time.Second
	// probeAfter is how long the broker may be silent until it is asked whether it is there, whatever
	// it asks of us.
	probeAfter = 10 * time.Second
	// envelopeBytes is what the topic, and the names of attributes, put on top of an event.
	envelopeBytes = 64 << 10
	// never is longer than any call: paho's own timeouts are not used.
	never = 24 * 365 * time.Hour
)

// Dialer opens connections to the broker that its options name. It remembers whether they were
// taken over, so that of two parties with one client id each waits longer and longer.
type Dialer struct {
	opts     Options
	endpoint endpoint
	topics   routes
	takeover takeovers
	// willDelay is how long this party must be gone for its will to be published.
	willDelay time.Duration
}

var _ transport.Dialer = (*Dialer)(nil)

// NewDialer checks the options. It opens nothing; the error names the option that is wrong.
func NewDialer(o Options) (*Dialer, error) {
	o, e, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Dialer{opts: o, endpoint: e, topics: routes{set: o.Topics}, willDelay: willDelay}, nil
}

// Dial connects and returns once the broker has accepted the CONNECT. The code of its
// *transport.Error is CodeUnavailable when the broker cannot be reached, CodeUnauthenticated when
// one side does not accept the other's certificate or the broker the password, CodeDeadline when
// the dial timeout or ctx ran out, and else what the broker's reason means.
func (d *Dialer) Dial(ctx context.Context) (transport.Conn, error) {
	if ctx.Err() != nil {
		return nil, dialing.TimedOut(ctx, d.opts.Broker, d.opts.DialTimeout)
	}
	dialCtx, cancel := context.WithTimeout(ctx, d.opts.DialTimeout)
	defer cancel()
	connect, err := d.connect()
	if err != nil {
		return nil, err
	}
	raw, roots, err := d.open(dialCtx)
	if err != nil {
		return nil, d.explain(ctx, dialCtx, err)
	}
	c := d.newConn(raw)
	c.roots, c.will = roots, connect.WillMessage != nil
	ca, err := c.client.Connect(dialCtx, connect)
	switch {
	case ca != nil && property.Reason(ca.ReasonCode) != property.Success:
		if err == nil { // a code below those of failures, which paho takes for success
			_ = c.Close() // is always nil
		}
		return nil, d.refused(ca, connect.PasswordFlag)
	case err != nil:
		if cause := c.state.stream.failure(); cause != nil && dialCtx.Err() == nil {
			err = cause
		}
		return nil, d.explain(ctx, dialCtx, err)
	}
	if err := c.connected(ca); err != nil {
		_ = c.Close() // is always nil
		return nil, err
	}
	return c, nil
}

// open opens the byte stream: TCP, or what takes its place, TLS, and WebSocket.
func (d *Dialer) open(ctx context.Context) (conn net.Conn, roots []string, err error) {
	conn, err = d.opts.DialContext(ctx, "tcp", d.endpoint.addr())
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			_ = conn.Close() // it is of no use any more
		}
	}()
	if d.opts.TLS != nil {
		config := d.opts.TLS().Clone()
		if config.ServerName == "" {
			config.ServerName = d.endpoint.host
		}
		if d.endpoint.websocket {
			config.NextProtos = []string{"http/1.1"}
		}
		secured := tls.Client(conn, config)
		conn = secured
		if err := secured.HandshakeContext(ctx); err != nil {
			return conn, nil, err
		}
		roots = dialing.Roots(secured.ConnectionState().VerifiedChains)
	}
	if !d.endpoint.websocket {
		return conn, roots, nil
	}
	upgraded, err := dialing.WithContext(ctx, conn, func() (net.Conn, error) { return d.upgrade(conn) })
	if err != nil {
		return conn, nil, fmt.Errorf("no WebSocket: %w", err)
	}
	return upgraded, roots, nil
}

// upgrade makes a WebSocket of a connection.
func (d *Dialer) upgrade(conn net.Conn) (net.Conn, error) {
	location := url.URL{Scheme: "ws", Host: d.endpoint.addr()}
	if d.opts.TLS != nil {
		location.Scheme = "wss"
	}
	config, err := websocket.NewConfig(location.String()+d.endpoint.path, "http://"+d.endpoint.addr())
	if err != nil {
		return nil, err
	}
	config.Protocol = []string{"mqtt"}
	ws, err := websocket.NewClient(config, conn)
	if err != nil {
		return nil, lastWord(conn, err)
	}
	ws.PayloadType = websocket.BinaryFrame
	return ws, nil
}

// lastWord returns why the server closed conn, if it said so before a request failed with err.
//
//	t1 We finish the TLS handshake and take the connection for open.
//	t2 The server finds our certificate wrong, says so in an alert, and closes.
//	t3 We send the request, and learn only that the connection is gone.
//
// Therefore the alert is looked for in what arrived before. Nothing is waited for: what is
// gone sends nothing more.
func lastWord(conn net.Conn, err error) error {
	if !isBareEnd(err) {
		return err
	}
	if _, why := conn.Read(make([]byte, 1)); why != nil && !isBareEnd(why) {
		return why
	}
	return err
}

// newConn puts together what a connection is made of.
func (d *Dialer) newConn(raw net.Conn) *Conn {
	o := &d.opts
	c := &Conn{dialer: d, maxPacket: d.maxPacket(), lock: make(chan struct{}, 1), reported: map[string]bool{}}
	s := newStream(raw, c.maxPacket, func(topic string, size int) {
		c.drop(dropTooLarge, topic, fmt.Errorf("it has %d bytes, at most %d are taken", size, c.maxPacket))
	})
	in := &inbox{
		acknowledge: func(ids []uint16) { acknowledge(s, ids) },
		dropped: func(p *packets.Publish) {
			c.drop(dropTopic, p.Topic, errors.New("nobody here has subscribed to it"))
		},
	}
	c.state = newSessionState(s, in)
	c.pinger = &pinger{stream: s, interval: min(o.KeepAlive, probeAfter), stalled: in.full}
	s.onReceive = c.pinger.PacketReceived
	c.client = paho.NewClient(paho.ClientConfig{
		ClientID: o.ClientID, Conn: s, Session: c.state, PingHandler: c.pinger, AuthHandler: noAuth{}, PacketTimeout: never,
		// What has QoS 0 comes this way; what has more goes to the link.
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(p paho.PublishReceived) (bool, error) {
			in.push(p.Packet.Packet())
			return true, nil
		}},
		OnServerDisconnect: func(*paho.Disconnect) {}, // the link has heard
		OnClientError:      func(error) {},            // the stream has seen
	})
	return c
}

// maxPacket is the largest packet that we take.
func (d *Dialer) maxPacket() int { return d.opts.MaxEventBytes + envelopeBytes }

// connect returns the CONNECT.
func (d *Dialer) connect() (*paho.Connect, error) {
	o := &d.opts
	connect := &paho.Connect{
		ClientID: o.ClientID, KeepAlive: uint16(o.KeepAlive / time.Second),
		Properties: &paho.ConnectProperties{
			ReceiveMaximum:     pointer(uint16(receiveMaximum)),
			MaximumPacketSize:  pointer(uint32(d.maxPacket())),
			RequestProblemInfo: true,
		},
	}
	if d.topics.shared() || o.Fleeting {
		// A broker goes on giving the share of a member that is away to its session.
		connect.CleanStart = true
	} else {
		connect.Properties.SessionExpiryInterval = pointer(uint32(sessionExpiry / time.Second))
	}
	if o.Login != nil {
		login := o.Login()
		connect.Username, connect.UsernameFlag = login.User, login.User != ""
		connect.Password, connect.PasswordFlag = []byte(login.Password), login.Password != ""
		if max(len(login.User), len(login.Password)) > codec.MaxTextBytes {
			return nil, transport.Invalid("the user name or the password does not fit into an MQTT packet", nil)
		}
	}
	return connect, d.addWill(connect)
}

// addWill adds the event that the broker publishes when this party is gone. Without a session that
// outlives the connection the broker would not wait until it is certain that the party does not
// come back, so there is none then.
func (d *Dialer) addWill(connect *paho.Connect) error {
	if d.opts.Will == nil || connect.Properties.SessionExpiryInterval == nil {
		return nil
	}
	e, ok := d.opts.Will()
	if !ok {
		return nil
	}
	p, err := d.topics.publish(e, "", false)
	if err != nil { // as where it is for no single source, and the topics have no place for that
		d.opts.Log.Warn("no will goes with the connection: nobody hears at once when this party is gone", "broker", d.opts.Broker, "error", err)
		return nil
	}
	if len(p.Payload) > codec.MaxTextBytes { // paho would cut it
		return transport.Invalid(fmt.Sprintf("the will has a payload of %d bytes, at most %d are possible", len(p.Payload), codec.MaxTextBytes), nil)
	}
	connect.WillMessage = &paho.WillMessage{QoS: qos, Topic: p.Topic, Payload: p.Payload}
	connect.WillProperties = &paho.WillProperties{
		WillDelayInterval: pointer(uint32(d.willDelay / time.Second)), User: p.Properties.User, // paho sends no content type here
	}
	return nil
}

func pointer[T any](v T) *T { return &v }

// noAuth refuses enhanced authentication, of which we have none: without it paho panics on a
// broker that speaks of it.
type noAuth struct{}

func (noAuth) Authenticate(*paho.Auth) *paho.Auth {
	return &paho.Auth{ReasonCode: packets.AuthContinueAuthentication}
}
func (noAuth) Authenticated() {}

// refused is the error of a CONNACK that is none of success.
func (d *Dialer) refused(ca *paho.Connack, password bool) error {
	r := property.Refusal{Reason: property.Reason(ca.ReasonCode)}
	if !r.Reason.Failed() { // of an older version, which has other codes
		r.Reason = property.UnsupportedVersion
	}
	if ca.Properties != nil {
		r.Text, r.Properties = ca.Properties.ReasonString, userPropertiesOf(ca.Properties.User)
	}
	if r.Reason == property.NotAuthorized && password && len(r.Properties) == 0 {
		r.Reason = property.BadUserNameOrPassword // so say some brokers that
	}
	e := r.Error()
	e.Message = "the broker " + d.opts.Broker + " refuses the client " + d.opts.ClientID + ": " + e.Message
	switch {
	case e.Hint != "":
	case r.Reason == property.UnsupportedVersion:
		e.Hint = "the broker must speak MQTT 5"
	case r.Reason == property.BadUserNameOrPassword:
		e.Hint = "check username and password in the configuration file; they are read again for the next attempt"
	case r.Reason == property.NotAuthorized:
		e.Hint = "check what the broker allows this identity, and this client id"
	}
	return e
}

// explain turns the failure of a Dial into an error that says which side is to do what.
func (d *Dialer) explain(ctx, dialCtx context.Context, cause error) error {
	if dialCtx.Err() != nil {
		return dialing.TimedOut(ctx, d.opts.Broker, d.opts.DialTimeout)
	}
	e := &transport.Error{Code: transport.CodeUnavailable, Message: "cannot connect to " + d.opts.Broker, Err: cause}
	switch {
	case dialing.Explain(e, cause):
	case errors.Is(cause, io.EOF), errors.Is(cause, errForeign):
		e.Hint = "the server does not speak MQTT 5, or does not accept this client: check the port"
	case strings.Contains(cause.Error(), "no WebSocket"):
		e.Hint = "the server does not serve MQTT over WebSocket there: check port and path"
	}
	return e
}

// acknowledge sends PUBACKs.
func acknowledge(s *stream, ids []uint16) {
	b := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		b = append(b, typePuback<<4, 2, byte(id>>8), byte(id))
	}
	s.Lock()
	defer s.Unlock()
	_, _ = s.Write(b) // a failure ends the connection
}

// userProperties and userPropertiesOf return the user properties of a packet.
func userProperties(in []packets.User) []codec.Property {
	out := make([]codec.Property, len(in))
	for i := range in {
		out[i] = codec.Property{Key: in[i].Key, Value: in[i].Value}
	}
	return out
}

func userPropertiesOf(in paho.UserProperties) []codec.Property {
	out := make([]codec.Property, len(in))
	for i := range in {
		out[i] = codec.Property{Key: in[i].Key, Value: in[i].Value}
	}
	return out
}
