package registration

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/internal/testkit/syncbuffer"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mem"
)

// serverOf is a server that is not running.
func serverOf(t *testing.T, config *rest.Config, log slog.Handler) *Server {
	t.Helper()
	hub, err := NewHub(config)
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{
		ID: "hub1", Hub: hub, Dialer: mem.New(nil, transport.Peer{}), Registerer: prometheus.NewRegistry(),
		Health: &telemetry.Health{}, Log: slog.New(log),
	})
	return s
}

// The review of hub-source's own token contains the audiences of the hub's API.
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
			keys, err := serverOf(t, config, slog.DiscardHandler).keys(t.Context())
			if err != nil || keys.GetIssuer() != "https://hub" || !slices.Equal(keys.GetApiAudiences(), c.want) {
				t.Errorf("keys %v, %v; want the audiences %q", keys, err, c.want)
			}
		})
	}
}

// The broker receives the authorities of the controllers of Open Cluster Management, and an empty list without
// controllers. If they are unknown, the message lacks them. The keys of tokens are sent in any case, and the
// log states once what to do.
func TestServer_PublishesClusterSigner(t *testing.T) {
	t.Parallel()
	now := time.Now()
	newAuthority := func(valid pki.Period) []byte {
		a, err := pki.NewAuthority("ocm", valid)
		if err != nil {
			t.Fatal(err)
		}
		return a.CertificatePEM()
	}
	present, next := newAuthority(pki.Starting(now, time.Hour)), newAuthority(pki.Starting(now, time.Hour))
	ended := newAuthority(pki.Period{NotBefore: now.Add(-2 * time.Hour), NotAfter: now.Add(-time.Hour)})

	fake, log := newFakeHub(t), &syncbuffer.Buffer{}
	s := serverOf(t, fake.config(), slog.NewTextHandler(log, nil))
	bundle := func(texts ...[]byte) {
		fake.put("configmaps", BundleNamespace, BundleConfigMap, obj{"data": obj{bundleKey: string(slices.Concat(texts...))}})
	}
	reports := func(when string, want []byte, warning string) {
		t.Helper()
		had := log.String()
		for range 2 { // the second time nothing new is logged
			keys, err := s.keys(t.Context())
			if err != nil || keys.GetIssuer() == "" || (keys.ClientAuthorities == nil) != (want == nil) || !bytes.Equal(keys.GetClientAuthorities(), want) {
				t.Errorf("%s: %v, %v", when, keys, err)
			}
		}
		logged := strings.TrimPrefix(log.String(), had)
		if lines := strings.Count(logged, "\n"); warning == "" && lines != 0 || warning != "" && (lines != 1 || !strings.Contains(logged, warning)) {
			t.Errorf("%s: the log has %q", when, logged)
		}
	}
	reports("without OCM", []byte{}, "")
	bundle(ended, present)
	reports("with its controllers", present, "")
	bundle(ended, present, next)
	reports("rotated", slices.Concat(present, next), "")
	bundle([]byte("-"))
	reports("broken", nil, "ConfigMap open-cluster-management-hub/ca-bundle-configmap, key ca-bundle.crt")
	bundle(ended)
	reports("all have ended", nil, "")
	fake.put("configmaps", BundleNamespace, BundleConfigMap, obj{"data": obj{"other": "x"}})
	reports("another key", nil, "")
	bundle(next)
	reports("mended", next, "")
	delete(fake.roles.of, BundleNamespace+"hawser-hub-source-registration")
	reports("without the right", nil, "apply deploy/hub-source-registration/rbac.yaml again")
}
