package mqtt_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/hawser-io/hawser/internal/broker/listener/grpc"
	"github.com/hawser-io/hawser/internal/broker/listener/mqtt"
	"github.com/hawser-io/hawser/internal/broker/tokens"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/property"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

const (
	publisher = "system:serviceaccount:ns:publisher"
	joiner    = "system:serviceaccount:ns:joiner"
)

// accounts is a hub with one user, to which all tokens belong. If gone is true, all tokens are rejected.
type accounts struct {
	user string
	mu   sync.Mutex
	gone bool
}

func (a *accounts) Review(_ context.Context, _ string, audiences []string) (*hawserv1.TokenReviewResult, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.gone {
		return &hawserv1.TokenReviewResult{}, nil
	}
	return &hawserv1.TokenReviewResult{Authenticated: true, User: a.user, Audiences: audiences}, nil
}

// password puts a token into the password of CONNECT.
func password(text string) func(*packets.Packet) {
	return func(k *packets.Packet) { k.Connect.PasswordFlag, k.Connect.Password = text != "", []byte(text) }
}

// bearersOf returns the Tokens of a broker that uses a hub. They run until the test ends.
func bearersOf(t *testing.T, hub *accounts, issuer *testkit.Issuer, now func() time.Time, rule tokens.Rule) *tokens.Tokens {
	t.Helper()
	rule.User = hub.user
	bearers, err := tokens.New(tokens.Options{
		Config:   tokens.Config{Audiences: []string{"hawser"}, Mapping: []tokens.Rule{rule}},
		Reviewer: hub, Log: slog.New(slog.DiscardHandler), Now: now,
	})
	if err != nil {
		t.Fatal(err)
	}
	bearers.SetKeys(&hawserv1.RegistrationKeys{Issuer: issuer.Name, Jwks: issuer.Keys()})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- bearers.Run(ctx) }() // the result is received below
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return bearers
}

// TestTokens checks that the password of a client without a certificate is a token. The connection ends when the
// token expires or is revoked.
func TestTokens(t *testing.T) {
	hub, issuer := &accounts{user: publisher}, testkit.NewIssuer(t, "https://hub.example")
	var mu sync.Mutex
	passed := time.Duration(0)
	now := func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return time.Now().Add(passed)
	}
	bearers := bearersOf(t, hub, issuer, now, tokens.Rule{Role: identity.Source, Name: "hub1"})
	peers := make(chan transport.Peer, 8)
	client := accepts
	client.subscribe = func(ctx context.Context, p transport.Peer, r transport.RawSubscription, out transport.Stream) error {
		peers <- p
		return accepts.subscribe(ctx, p, r, out)
	}
	s := open(t, client, func(g *grpc.Config, _ *mqtt.Config) { g.Config.Tokens, g.Config.Now = bearers, now })
	noIdentity, good := identity.Identity{}, issuer.Token("ns", "publisher", nil)
	for name, c := range map[string]struct {
		text string
		code byte
	}{
		"none": {"", byte(property.NotAuthorized)}, "no token": {"x", byte(property.NotAuthorized)},
		"of another hub": {testkit.NewIssuer(t, issuer.Name).Token("ns", "publisher", nil), byte(property.NotAuthorized)},
		"unmapped":       {issuer.Token("ns", "unmapped", nil), byte(property.NotAuthorized)},
		"good":           {good, byte(property.Success)},
	} {
		peer, k := s.connect(noIdentity, password(c.text))
		if k.FixedHeader.Type != packets.Connack || k.ReasonCode != c.code {
			t.Errorf("%s: %#02x %q", name, k.ReasonCode, k.Properties.ReasonString)
		}
		if err := peer.Close(); err != nil {
			t.Error(err)
		}
	}
	peer, _ := s.connect(noIdentity, password(good))
	peer.send(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Subscribe}, PacketID: 1,
		Filters: packets.Subscriptions{{Filter: "sources/hub1/clusters/+/agentevents", Qos: 1}},
	})
	if p := <-peers; p.Role != "source" || p.Name != "hub1" || p.User != publisher || p.Transport != transport.MQTT {
		t.Errorf("%+v", p)
	}
	hub.mu.Lock()
	hub.gone = true
	hub.mu.Unlock()
	mu.Lock()
	passed = 2 * time.Minute
	mu.Unlock()
	peer.gone()
	if _, k := s.connect(noIdentity, password(good)); k.ReasonCode != byte(property.NotAuthorized) {
		t.Errorf("its account was deleted: %#02x", k.ReasonCode)
	}
}

// TestTokens_Bootstrap checks that a bootstrap token as password gives the role bootstrap. The rights are
// checked on the event, as on every transport.
func TestTokens_Bootstrap(t *testing.T) {
	hub, issuer := &accounts{user: joiner}, testkit.NewIssuer(t, "https://hub.example")
	bearers := bearersOf(t, hub, issuer, time.Now, tokens.Rule{Role: identity.Bootstrap})
	client, subscribed := calls()
	published := make(chan transport.Peer, 8)
	client.publish = func(_ context.Context, p transport.Peer, _ []byte, _ string) (transport.Receipt, error) {
		published <- p
		return transport.Receipt{}, &transport.Error{Code: transport.CodeDenied, Next: transport.NextStop, Message: "not over MQTT"}
	}
	s := open(t, client, func(g *grpc.Config, _ *mqtt.Config) { g.Config.Tokens = bearers })
	boot, k := s.connect(identity.Identity{}, password(issuer.Token("ns", "joiner", nil)))
	if k.FixedHeader.Type != packets.Connack || k.ReasonCode != byte(property.Success) {
		t.Fatalf("%#02x %q", k.ReasonCode, k.Properties.ReasonString)
	}
	isBoot := func(p transport.Peer) bool {
		return p.Role == "bootstrap" && p.User == joiner && p.Name != "" && p.Transport == transport.MQTT
	}
	boot.send(subscribe(1, "sources/+/clusters/cluster1/sourceevents"))
	boot.expect(packets.Suback)
	if p := await(t, subscribed).peer; !isBoot(p) {
		t.Errorf("subscribed by %+v", p)
	}
	boot.send(publish(2, "sources/hub1/clusters/cluster1/sourceevents", event(t, "hub1", "cluster1", "w", 1)))
	if k := boot.expect(packets.Puback); k.PacketID != 2 || k.ReasonCode != byte(property.NotAuthorized) || len(published) != 0 {
		t.Errorf("as a source: %d %#02x, and the server got %d events", k.PacketID, k.ReasonCode, len(published))
	}
	boot.send(publish(3, "sources/hub1/clusters/cluster1/agentevents", status(t, "hub1", "cluster1", "w", 1)))
	if k := boot.expect(packets.Puback); k.PacketID != 3 || k.ReasonCode != byte(property.NotAuthorized) {
		t.Errorf("as an agent: %d %#02x", k.PacketID, k.ReasonCode)
	}
	if p := await(t, published); !isBoot(p) {
		t.Errorf("published by %+v", p)
	}
}
