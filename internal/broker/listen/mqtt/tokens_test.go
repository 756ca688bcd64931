package mqtt_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/hawser-io/hawser/internal/broker/listen/grpc"
	"github.com/hawser-io/hawser/internal/broker/listen/mqtt"
	"github.com/hawser-io/hawser/internal/broker/tokens"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/property"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

const publisher = "system:serviceaccount:ns:publisher"

// accounts is a hub that says that each token is the publisher's, unless that is gone.
type accounts struct {
	mu   sync.Mutex
	gone bool
}

func (a *accounts) Review(_ context.Context, _ string, audiences []string) (*hawserv1.TokenReviewResult, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.gone {
		return &hawserv1.TokenReviewResult{}, nil
	}
	return &hawserv1.TokenReviewResult{Authenticated: true, User: publisher, Audiences: audiences}, nil
}

// password shows a token in CONNECT.
func password(text string) func(*packets.Packet) {
	return func(k *packets.Packet) { k.Connect.PasswordFlag, k.Connect.Password = text != "", []byte(text) }
}

// TestTokens: the password of who has no certificate is a token, which the connection rests on.
func TestTokens(t *testing.T) {
	hub, issuer := &accounts{}, testkit.NewIssuer(t, "https://hub.example")
	var mu sync.Mutex
	passed := time.Duration(0)
	now := func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return time.Now().Add(passed)
	}
	bearers, err := tokens.New(tokens.Options{
		Config:   tokens.Config{Audiences: []string{"hawser"}, Mapping: []tokens.Rule{{User: publisher, Role: identity.Source, Name: "hub1"}}},
		Reviewer: hub, Log: slog.New(slog.DiscardHandler), Now: now,
	})
	if err != nil {
		t.Fatal(err)
	}
	bearers.SetKeys(&hawserv1.RegistrationKeys{Issuer: issuer.Name, Jwks: issuer.Keys()})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- bearers.Run(ctx) }() // received from below
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	peers := make(chan transport.Peer, 8)
	who := accepts
	who.subscribe = func(ctx context.Context, p transport.Peer, r transport.RawSubscription, out transport.Stream) error {
		peers <- p
		return accepts.subscribe(ctx, p, r, out)
	}
	s := open(t, who, func(g *grpc.Config, _ *mqtt.Config) { g.Config.Tokens, g.Config.Now = bearers, now })
	nobody, good := identity.Identity{}, issuer.Token("ns", "publisher", nil)
	for name, c := range map[string]struct {
		text string
		code byte
	}{
		"none": {"", byte(property.NotAuthorized)}, "no token": {"x", byte(property.NotAuthorized)},
		"of another hub": {testkit.NewIssuer(t, issuer.Name).Token("ns", "publisher", nil), byte(property.NotAuthorized)},
		"of nobody":      {issuer.Token("ns", "somebody", nil), byte(property.NotAuthorized)},
		"good":           {good, byte(property.Success)},
	} {
		peer, k := s.connect(nobody, password(c.text))
		if k.FixedHeader.Type != packets.Connack || k.ReasonCode != c.code {
			t.Errorf("%s: %#02x %q", name, k.ReasonCode, k.Properties.ReasonString)
		}
		if err := peer.Close(); err != nil {
			t.Error(err)
		}
	}
	peer, _ := s.connect(nobody, password(good))
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
	if _, k := s.connect(nobody, password(good)); k.ReasonCode != byte(property.NotAuthorized) {
		t.Errorf("its account is gone: %#02x", k.ReasonCode)
	}
}
