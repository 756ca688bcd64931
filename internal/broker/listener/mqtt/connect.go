package mqtt

import (
	"encoding/binary"
	"math"
	"strconv"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/hawser-io/hawser/internal/broker/authz"
	"github.com/hawser-io/hawser/internal/broker/listener"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/property"
)

// longestKeepAlive is the maximum keep alive in seconds. Clients that want more, or none, get this one.
const longestKeepAlive = 60

// connackOfOld is the CONNACK of MQTT 3 for an unsupported version.
var connackOfOld = []byte{packets.Connack << 4, 2, 0, 1}

// connect reads CONNECT and answers it. The identity of the peer comes from its certificate, or from the token
// in the password. Nothing else in the packet changes it.
func (c *conn) connect() error {
	p, err := c.read()
	if err != nil {
		return err
	}
	if err := validate(p.header, p.body); err != nil {
		return err
	}
	pk, err := decode(p.header, p.body)
	if err != nil {
		return err
	}
	if err := c.authenticate(pk); err != nil {
		c.conn.Refused(authz.Subscribe, listener.ReasonOf(err), err)
		return err
	}
	c.agree(pk)
	c.enter(c)
	must := c.offer(pk)
	c.send(connack(property.Refusal{Properties: c.cfg.Announce().Properties()}, must))
	c.connected, c.sawConnect = true, true
	return c.flush()
}

// authenticate returns an error if the peer is rejected. The password is used as a bearer token if the
// certificate gives no identity.
func (c *conn) authenticate(pk *packets.Packet) error {
	pending, err := c.conn.TakeToken(string(pk.Connect.Password))
	if pending {
		err = c.conn.WaitForIdentity(c.ctx)
	}
	if err != nil {
		return err
	}
	return c.conn.CheckMethod(authz.Subscribe) // roles that may subscribe may publish too
}

// agree applies the options of the client.
func (c *conn) agree(pk *packets.Packet) {
	c.options = clientOptions{window: inFlight, most: math.MaxInt32, sent: !pk.Properties.RequestProblemInfoFlag || pk.Properties.RequestProblemInfo == 1}
	if n := int(pk.Properties.ReceiveMaximum); n > 0 {
		c.options.window = min(n, inFlight)
	}
	if n := pk.Properties.MaximumPacketSize; n > 0 {
		c.options.most = int(min(n, math.MaxInt32))
	}
	c.client = client{client: c.conn.Caller(), id: string([]byte(pk.Connect.ClientIdentifier))}
	c.within = c.cfg.PublishTimeout
	c.idleTimeout = time.Duration(keepAlive(pk)) * time.Second * 3 / 2
}

func keepAlive(pk *packets.Packet) uint16 {
	if k := pk.Connect.Keepalive; k > 0 && k <= longestKeepAlive {
		return k
	}
	return longestKeepAlive
}

// offer returns the encoded properties of CONNACK. The other properties have the defaults of MQTT: no topic
// aliases; wildcards and shared subscriptions are allowed in filters.
func (c *conn) offer(pk *packets.Packet) []byte {
	b := binary.BigEndian.AppendUint32([]byte{packets.PropSessionExpiryInterval}, 0)
	b = binary.BigEndian.AppendUint16(append(b, packets.PropReceiveMaximum), inFlight)
	b = append(b, packets.PropMaximumQos, 1, packets.PropRetainAvailable, 0, packets.PropSubIDAvailable, 0)
	b = binary.BigEndian.AppendUint32(append(b, packets.PropMaximumPacketSize), uint32(c.cfg.MaxPacketBytes))
	if c.client.id == "" {
		b = appendText(append(b, packets.PropAssignedClientID), "hawser-"+strconv.FormatUint(c.conn.Peer().Conn, 10))
	}
	if k := keepAlive(pk); k != pk.Connect.Keepalive {
		b = binary.BigEndian.AppendUint16(append(b, packets.PropServerKeepAlive), k)
	}
	return b
}

// connack returns the answer to CONNECT. must are encoded properties.
func connack(r property.Refusal, must []byte) *answer {
	return &answer{kind: packets.Connack, before: []byte{0, byte(r.Reason)}, must: must, text: r.Text, properties: r.Properties}
}
