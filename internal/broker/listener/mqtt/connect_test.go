package mqtt_test

import (
	"strings"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/hawser-io/hawser/internal/broker/listener/grpc"
	"github.com/hawser-io/hawser/internal/broker/listener/mqtt"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/property"
)

func TestConnect_AnnouncesServedFeatures(t *testing.T) {
	s := open(t, accepts, func(_ *grpc.Config, m *mqtt.Config) {
		m.MaxPacketBytes = 1 << 20
		m.Announce = func() property.Announcement { return property.Announcement{StoreID: "e1", MaxEventBytes: 1000} }
	})
	_, k := s.connect(agent1, func(k *packets.Packet) {
		k.Connect.ClientIdentifier, k.Connect.Keepalive = "", 0
		k.Properties.SessionExpiryInterval, k.Properties.SessionExpiryIntervalFlag = 3600, true
	})
	p := k.Properties
	if k.ReasonCode != 0 || k.SessionPresent || !p.SessionExpiryIntervalFlag || p.SessionExpiryInterval != 0 || p.ReceiveMaximum != 256 ||
		!p.MaximumQosFlag || p.MaximumQos != 1 || !p.RetainAvailableFlag || p.RetainAvailable != 0 || !p.SubIDAvailableFlag || p.SubIDAvailable != 0 ||
		p.MaximumPacketSize != 1<<20 || p.ServerKeepAlive != 60 || !strings.HasPrefix(p.AssignedClientID, "hawser-") || p.TopicAliasMaximum != 0 {
		t.Errorf("%+v", k)
	}
	if user(k, codec.HeaderProtocol) != "2" || user(k, codec.HeaderStoreID) != "e1" || user(k, codec.HeaderMaxEventBytes) != "1000" {
		t.Errorf("%v", p.User)
	}
	peer, k := s.connect(agent1, func(k *packets.Packet) { // unsupported options are no reason to reject the client
		k.Connect.Clean, k.Connect.UsernameFlag, k.Connect.Username = false, true, []byte("root")
		k.Connect.PasswordFlag, k.Connect.Password = true, []byte("x")
		k.Connect.WillFlag, k.Connect.WillTopic, k.Connect.WillPayload, k.Connect.WillQos = true, "any/thing", []byte("x"), 1
	})
	if k.ReasonCode != 0 || k.SessionPresent || k.Properties.ServerKeepAliveFlag || k.Properties.ServerKeepAlive != 0 || k.Properties.AssignedClientID != "" {
		t.Errorf("%+v", k)
	}
	peer.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
	peer.expect(packets.Pingresp)
	peer.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}})
	if k := peer.gone(); k.FixedHeader.Type != 0 {
		t.Errorf("after DISCONNECT: %+v", k)
	}
}

func TestConnect_Refusals(t *testing.T) {
	s := open(t, accepts, cleartext)
	for name, c := range map[string]struct {
		id     identity.Identity
		edit   func(*packets.Packet)
		code   byte
		reason string
	}{
		"viewer":   {viewer, func(*packets.Packet) {}, 0x87, "denied"},
		"unmapped": {identity.Identity{Role: identity.Source, Name: "unmapped"}, func(*packets.Packet) {}, 0x87, "unauthenticated"},
		"will of QoS 2": {agent1, func(k *packets.Packet) {
			k.Connect.WillFlag, k.Connect.WillTopic, k.Connect.WillPayload, k.Connect.WillQos = true, "t", []byte("x"), 2
		}, 0x9B, ""},
		"will retained": {agent1, func(k *packets.Packet) {
			k.Connect.WillFlag, k.Connect.WillTopic, k.Connect.WillPayload, k.Connect.WillRetain = true, "t", []byte("x"), true
		}, 0x9A, ""},
		"authentication": {agent1, func(k *packets.Packet) { k.Properties.AuthenticationMethod = "SCRAM" }, 0x8C, ""},
		"too long": {agent1, func(k *packets.Packet) {
			k.Connect.UsernameFlag, k.Connect.Username = true, make([]byte, 5<<10)
		}, 0x95, ""},
	} {
		peer, k := s.connect(c.id, c.edit)
		if k.FixedHeader.Type != packets.Connack || k.ReasonCode != c.code || user(k, "hawser-code") != c.reason {
			t.Errorf("%s: %#02x %q %v", name, k.ReasonCode, k.Properties.ReasonString, k.Properties.User)
		}
		if err := peer.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestConnect_OldVersion checks that a client of MQTT 3.1.1 gets a CONNACK of its own version.
func TestConnect_OldVersion(t *testing.T) {
	peer := open(t, accepts, cleartext).raw(agent1)
	peer.sendBytes([]byte{0x10, 13, 0, 4, 'M', 'Q', 'T', 'T', 4, 2, 0, 30, 0, 1, 'c'})
	var got [4]byte
	if _, err := peer.Read(got[:]); err != nil || got != [4]byte{0x20, 2, 0, 1} {
		t.Errorf("%x, %v", got, err)
	}
}

// TestConnect_SomethingElse checks that a connection with another protocol is closed without an answer, and
// that its data is not read.
func TestConnect_SomethingElse(t *testing.T) {
	s := open(t, accepts, cleartext)
	for name, b := range map[string][]byte{
		"publish first": append([]byte{0x32}, number(1<<20)...), "SSH": []byte("SSH-2.0-x\r\n"), "ping": {0xC0, 0},
	} {
		peer := s.raw(agent1)
		peer.sendBytes(b)
		if k := peer.gone(); k.FixedHeader.Type != 0 {
			t.Errorf("%s: %+v", name, k)
		}
	}
}

// TestConnect_Takeover checks that only the same identity can take over a client id, and that the older
// connection gets the reason.
func TestConnect_Takeover(t *testing.T) {
	s := open(t, accepts, cleartext)
	first, other := s.join(agent1), s.join(source1) // both have the same client id
	second := s.join(agent1)
	if k := first.gone(); k.FixedHeader.Type != packets.Disconnect || k.ReasonCode != 0x8E {
		t.Errorf("%+v", k)
	}
	for _, p := range []*peer{other, second} {
		p.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
		p.expect(packets.Pingresp)
	}
}
