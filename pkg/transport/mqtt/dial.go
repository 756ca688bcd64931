package mqtt

import (
	"cmp"
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
	// qos is the QoS of all publishes and subscriptions: at least once.
	qos = 1
	// noRetained is the Retain Handling of subscriptions: send no retained messages.
	noRetained = 2
	// sessionExpiry is how long an OCM broker stores messages for a disconnected client. It is the default of AWS
	// IoT Core and Azure Event Grid.
	sessionExpiry = time.Hour
	// willDelay is the will delay of a Dialer. A client that reconnects within it does not count as gone.
	willDelay = 30 * time.Second
	// probeAfter is the silence of the broker after which the client pings it, independent of the keep-alive.
	probeAfter = 10 * time.Second
	// envelopeBytes bounds the bytes that the topic and attribute names add to an event.
	envelopeBytes = 64 << 10
	// never is longer than any call, because paho's own timeouts are not used.
	never = 24 * 365 * time.Hour
)

// Dialer opens connections to one of the brokers in its options. It counts session takeovers: of two clients with
// one client id, each waits longer after each takeover.
type Dialer struct {
	opts      Options
	brokers   []endpoint
	endpoints *dialing.Endpoints // of the same brokers
	topics    routes
	takeover  takeovers
	// willDelay is the time without this client after which the broker publishes its will.
	willDelay time.Duration
}

var _ transport.Dialer = (*Dialer)(nil)

// NewDialer checks the options. It opens nothing; the error names the invalid option.
func NewDialer(o Options) (*Dialer, error) {
	o, brokers, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	addresses := make([]string, len(brokers))
	for i, e := range brokers {
		addresses[i] = e.addr()
	}
	return &Dialer{
		opts: o, brokers: brokers, endpoints: dialing.NewEndpoints(addresses, o.Proxy, o.DialContext),
		topics: routes{set: o.Topics}, willDelay: willDelay,
	}, nil
}

// Dial connects and returns when the broker has accepted the CONNECT. It tries all addresses in random order, the
// last used one at the end. The codes of its *transport.Error are:
//
//   - CodeUnavailable: the broker cannot be reached;
//   - CodeUnauthenticated: one side rejects the other's certificate, or the broker the password;
//   - CodeDeadline: the dial timeout or ctx expired;
//   - else the code of the broker's reason.
func (d *Dialer) Dial(ctx context.Context) (transport.Conn, error) {
	c, err := dialing.Connect(ctx, d.endpoints, d.opts.DialTimeout, d.dial)
	if err != nil { // a nil *Conn in the interface would compare unequal to nil
		return nil, err
	}
	return c, nil
}

// dial connects to one endpoint.
func (d *Dialer) dial(ctx context.Context, at dialing.Attempt) (*Conn, error) {
	connect, err := d.connect()
	if err != nil {
		return nil, err
	}
	raw, roots, err := d.open(ctx, at)
	if err != nil {
		return nil, explain(at, err)
	}
	c := d.newConn(raw, at.String())
	c.roots, c.will = roots, connect.WillMessage != nil
	ca, err := c.client.Connect(ctx, connect)
	switch {
	case ca != nil && property.Reason(ca.ReasonCode) != property.Success:
		if err == nil { // a reason code below the failures, which paho treats as success
			_ = c.Close() // Close always returns nil
		}
		return nil, d.refused(at, ca, connect.PasswordFlag)
	case err != nil:
		if cause := c.state.stream.failure(); cause != nil && ctx.Err() == nil {
			err = cause
		}
		return nil, explain(at, err)
	}
	if err := c.connected(ca); err != nil {
		_ = c.Close() // Close always returns nil
		return nil, err
	}
	return c, nil
}

// open opens the byte stream: TCP or its replacement, then TLS and WebSocket.
func (d *Dialer) open(ctx context.Context, at dialing.Attempt) (conn net.Conn, roots []string, err error) {
	broker := d.brokers[at.Index]
	conn, err = at.Open(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			_ = conn.Close() // it is useless now
		}
	}()
	if d.opts.TLS != nil {
		config := d.opts.TLS().Clone()
		config.ServerName = cmp.Or(config.ServerName, broker.host)
		if broker.websocket {
			config.NextProtos = []string{"http/1.1"}
		}
		secured := tls.Client(conn, config)
		conn = secured
		if err := secured.HandshakeContext(ctx); err != nil {
			return conn, nil, err
		}
		roots = dialing.Roots(secured.ConnectionState().VerifiedChains)
	}
	if !broker.websocket {
		return conn, roots, nil
	}
	upgraded, err := dialing.WithContext(ctx, conn, func() (net.Conn, error) { return d.upgrade(conn, broker) })
	if err != nil {
		return conn, nil, fmt.Errorf("no WebSocket: %w", err)
	}
	return upgraded, roots, nil
}

// upgrade performs the WebSocket handshake on a connection.
func (d *Dialer) upgrade(conn net.Conn, broker endpoint) (net.Conn, error) {
	location := url.URL{Scheme: "ws", Host: broker.addr()}
	if d.opts.TLS != nil {
		location.Scheme = "wss"
	}
	config, err := websocket.NewConfig(location.String()+broker.path, "http://"+broker.addr())
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

// lastWord returns the server's reason to close conn, if it sent one before a request failed with err.
//
// Scenario:
//
//	t1: the client finishes the TLS handshake and considers the connection open.
//	t2: the server rejects the client certificate, sends an alert and closes.
//	t3: the client sends the request, and sees only that the connection is gone.
//
// Result: lastWord looks for the alert in data that arrived before. It does not wait: a closed connection
// delivers no more data.
func lastWord(conn net.Conn, err error) error {
	if !isBareEnd(err) {
		return err
	}
	if _, why := conn.Read(make([]byte, 1)); why != nil && !isBareEnd(why) {
		return why
	}
	return err
}

// newConn assembles the parts of a connection.
func (d *Dialer) newConn(raw net.Conn, broker string) *Conn {
	o := &d.opts
	c := &Conn{dialer: d, broker: broker, maxPacket: d.maxPacket(), lock: make(chan struct{}, 1), reported: map[string]bool{}}
	s := newStream(raw, c.maxPacket, func(topic string, size int) {
		c.drop(dropTooLarge, topic, fmt.Errorf("it has %d bytes, at most %d are accepted", size, c.maxPacket))
	})
	in := &inbox{
		acknowledge: func(ids []uint16) { acknowledge(s, ids) },
		dropped: func(p *packets.Publish) {
			c.drop(dropTopic, p.Topic, errors.New("no subscription of this client matches it"))
		},
	}
	c.state = newSessionState(s, in)
	c.pinger = &pinger{stream: s, interval: min(o.KeepAlive, probeAfter), stalled: in.full}
	s.onReceive = c.pinger.PacketReceived
	c.client = paho.NewClient(paho.ClientConfig{
		ClientID: o.ClientID, Conn: s, Session: c.state, PingHandler: c.pinger, AuthHandler: noAuth{}, PacketTimeout: never,
		// Packets with QoS 0 arrive here; others go to sessionState.
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(p paho.PublishReceived) (bool, error) {
			in.push(p.Packet.Packet())
			return true, nil
		}},
		OnServerDisconnect: func(*paho.Disconnect) {}, // sessionState gets it
		OnClientError:      func(error) {},            // stream reports it
	})
	return c
}

// maxPacket returns the size of the largest accepted packet, in bytes.
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
		// Otherwise a broker would send events for a disconnected member to its stored session.
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

// addWill adds the event that the broker publishes when this client is gone. Without a session that outlives
// the connection, the broker would publish at once, even if the client reconnects. Then there is no will.
func (d *Dialer) addWill(connect *paho.Connect) error {
	if d.opts.Will == nil || connect.Properties.SessionExpiryInterval == nil {
		return nil
	}
	e, ok := d.opts.Will()
	if !ok {
		return nil
	}
	p, err := d.topics.publish(e, "", false)
	if err != nil { // for instance because the event has no single source and the topics have no broadcast
		d.opts.Log.Warn("the connection has no last will: sources learn late that this client has disconnected", "broker", d.opts.Broker, "error", err)
		return nil
	}
	if len(p.Payload) > codec.MaxTextBytes { // paho would truncate it
		return transport.Invalid(fmt.Sprintf("the will has a payload of %d bytes, at most %d are possible", len(p.Payload), codec.MaxTextBytes), nil)
	}
	connect.WillMessage = &paho.WillMessage{QoS: qos, Topic: p.Topic, Payload: p.Payload}
	connect.WillProperties = &paho.WillProperties{
		WillDelayInterval: pointer(uint32(d.willDelay / time.Second)), User: p.Properties.User, // paho sends no content type here
	}
	return nil
}

func pointer[T any](v T) *T { return &v }

// noAuth rejects enhanced authentication, which Hawser does not support. Without it paho panics on a broker
// that requests it.
type noAuth struct{}

func (noAuth) Authenticate(*paho.Auth) *paho.Auth {
	return &paho.Auth{ReasonCode: packets.AuthContinueAuthentication}
}
func (noAuth) Authenticated() {}

// refused returns the error of a CONNACK without success.
func (d *Dialer) refused(at dialing.Attempt, ca *paho.Connack, password bool) error {
	r := property.Refusal{Reason: property.Reason(ca.ReasonCode)}
	if !r.Reason.Failed() { // the broker speaks an older MQTT version with other codes
		r.Reason = property.UnsupportedVersion
	}
	if ca.Properties != nil {
		r.Text, r.Properties = ca.Properties.ReasonString, userPropertiesOf(ca.Properties.User)
	}
	if r.Reason == property.NotAuthorized && password && len(r.Properties) == 0 {
		r.Reason = property.BadUserNameOrPassword // some brokers use these codes for it
	}
	e := r.Error()
	e.Message = "the broker " + at.String() + " rejects the client " + d.opts.ClientID + ": " + e.Message
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

// explain turns the failure of a Dial into an error that names the side which must act.
func explain(at dialing.Attempt, cause error) error {
	e := &transport.Error{Code: transport.CodeUnavailable, Message: "cannot connect to " + at.String(), Err: cause}
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

// userProperties and userPropertiesOf convert the user properties of a packet.
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
