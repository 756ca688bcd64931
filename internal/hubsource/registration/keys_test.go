package registration

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mem"
)

// For whom the tokens of the hub's own API are, the hub says of hub-source's own.
func TestServer_KnowsTheHubsAudiences(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("of-hub-source\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		token, file string
		want        []string
	}{
		"by its own token":           {"of-hub-source", "", []string{"https://api"}},
		"by a token in a file":       {"", file, []string{"https://api"}},
		"a token of another issuer":  {"foreign", "", []string{"https://hub"}},
		"no token but a certificate": {"", "", []string{"https://hub"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := newFakeHub(t)
			fake.tokens["of-hub-source"] = hubSource
			config := fake.config()
			config.BearerToken, config.BearerTokenFile = c.token, c.file
			hub, err := NewHub(config)
			if err != nil {
				t.Fatal(err)
			}
			s, err := New(Config{
				ID: "hub1", Hub: hub, Dialer: mem.New(nil, transport.Peer{}), Registerer: prometheus.NewRegistry(),
				Health: &telemetry.Health{}, Log: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			keys, err := s.keys(t.Context())
			if err != nil || keys.GetIssuer() != "https://hub" || !slices.Equal(keys.GetApiAudiences(), c.want) {
				t.Errorf("keys %v, %v; want the audiences %q", keys, err, c.want)
			}
		})
	}
}
