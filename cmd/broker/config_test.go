package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/audit"
	"github.com/hawser-io/hawser/internal/broker/tokens"
	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/identity"
)

// load parses arguments as the program does.
func load(args ...string) (*config, error) {
	c := defaults()
	f := pflag.NewFlagSet(program, pflag.ContinueOnError)
	f.SetOutput(io.Discard)
	c.addFlags(f)
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	return c, c.load(f)
}

// loaded is load with a configuration file, which the arguments can name as FILE.
func loaded(t *testing.T, file string, args ...string) (*config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "broker.yaml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "FILE", path)
	}
	return load(args...)
}

const complete = `
listen: 10.0.0.1:9000
adminListen: 127.0.0.1:9001
dataDir: /data
store: {engine: postgres, url: "postgres://hawser@db/hawser", passwordFile: password}
tls:
  certFile: tls.crt
  keyFile: tls.key
  clientCAFile: ca.crt
identities:
- commonName: hawser:source:hub
  role: source
  name: hub
  clusters: [one]
  clusterPrefixes: [edge-]
  quota: {works: 10, bytes: 1000, clusters: 3}
- organization: people
  role: viewer
  name: people
clusterQuota: {works: 5}
registration: {source: hub}
tokens:
  audiences: [hawser]
  hubAudience: true
  mapping:
  - {user: "system:serviceaccount:hub:bootstrap", role: bootstrap}
  - {group: people, role: viewer, name: people}
maxEventBytes: 100000
maxHandshakesPerAddress: 256
proxyProtocolFrom: [10.0.0.0/24, "fd00::1/128"]
drainTimeout: 30s
audit: rejections
log:
  level: debug
  format: json
`

func TestConfig_File(t *testing.T) {
	got, err := loaded(t, complete, "--config", "FILE")
	if err != nil {
		t.Fatal(err)
	}
	want := &config{
		Listen: "10.0.0.1:9000", DataDir: "/data", Output: cmdline.NewOutput("127.0.0.1:9001"),
		Identities: identity.Mapping{
			{
				CommonName: "hawser:source:hub", Role: identity.Source, Name: "hub",
				Clusters: []string{"one"}, ClusterPrefixes: []string{"edge-"}, Quota: identity.Limits{Works: 10, Bytes: 1000, Clusters: 3},
			},
			{Organization: "people", Role: identity.Viewer, Name: "people"},
		},
		ClusterQuota:  identity.Limits{Works: 5},
		MaxEventBytes: 100000, HandshakesPerAddress: 256, ProxyProtocolFrom: []string{"10.0.0.0/24", "fd00::1/128"}, DrainTimeout: cmdline.Duration(30 * time.Second),
		Audit: audit.Rejections,
		Tokens: tokens.Config{Audiences: []string{"hawser"}, HubAudience: true, Mapping: []tokens.Rule{
			{User: "system:serviceaccount:hub:bootstrap", Role: identity.Bootstrap}, {Group: "people", Role: identity.Viewer, Name: "people"},
		}},
	}
	want.Store.Engine, want.Store.URL, want.Store.PasswordFile = enginePostgres, "postgres://hawser@db/hawser", "password"
	want.TLS.CertFile, want.TLS.KeyFile, want.TLS.ClientCAFile = "tls.crt", "tls.key", "ca.crt"
	want.Registration.Source = "hub"
	want.Log.Level, want.Log.Format = "debug", "json"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestConfig_FlagsWin(t *testing.T) {
	got, err := loaded(t, complete, "--listen=127.0.0.1:1", "--config=FILE", "--drain-timeout=5s", "--max-event-bytes=200000", "--admin-listen=", "--log-format=text",
		"--proxy-protocol-from=10.1.0.0/16")
	if err != nil {
		t.Fatal(err)
	}
	if got.Listen != "127.0.0.1:1" || got.DrainTimeout != cmdline.Duration(5*time.Second) || got.MaxEventBytes != 200000 ||
		got.AdminListen != "" || got.Log.Format != "text" {
		t.Errorf("a flag did not win: %+v", got)
	}
	if d := cmp.Diff([]string{"10.1.0.0/16"}, got.ProxyProtocolFrom); d != "" {
		t.Error(d)
	}
	if got.DataDir != "/data" || got.Log.Level != "debug" {
		t.Errorf("the file does not set a value without a flag: %+v", got)
	}
}

func TestConfig_Defaults(t *testing.T) {
	got, err := loaded(t, "", "--insecure", "--listen=localhost:8090")
	if err != nil {
		t.Fatal(err)
	}
	if got.MaxEventBytes != broker.DefaultMaxEventBytes || got.AdminListen != "127.0.0.1:8081" || got.DataDir == "" {
		t.Errorf("defaults: %+v", got)
	}
}

func TestConfig_Refuses(t *testing.T) {
	tls := []string{"--tls-cert-file=a", "--tls-key-file=b", "--client-ca-file=c"}
	for name, c := range map[string]struct {
		file string
		args []string
		want string
	}{
		"no TLS":                        {"", nil, "--insecure"},
		"half of TLS":                   {"", tls[:2], "client-ca-file"},
		"insecure and TLS":              {"", append([]string{"--insecure", "--listen=127.0.0.1:1"}, tls...), "exclude each other"},
		"insecure everywhere":           {"", []string{"--insecure"}, "loopback"},
		"address without port":          {"", append([]string{"--listen=host"}, tls...), "host:port"},
		"bad admin address":             {"", append([]string{"--admin-listen=x"}, tls...), "host:port"},
		"no data directory":             {"", append([]string{"--data-dir="}, tls...), "data-dir"},
		"unknown engine":                {"", append([]string{"--store-engine=etcd"}, tls...), "pebble or postgres"},
		"no database":                   {"store: {engine: postgres}", append([]string{"--config=FILE"}, tls...), "store-url"},
		"database of no engine":         {"", append([]string{"--store-password-file=p"}, tls...), "store-engine postgres"},
		"no event fits":                 {"", append([]string{"--max-event-bytes=0"}, tls...), "positive"},
		"no time to drain":              {"", append([]string{"--drain-timeout=-1s"}, tls...), "positive"},
		"no handshakes":                 {"", append([]string{"--max-handshakes-per-address=0"}, tls...), "positive"},
		"proxy without length":          {"", append([]string{"--proxy-protocol-from=10.0.0.1"}, tls...), "10.0.0.7/32"},
		"no such file":                  {"", []string{"--config=FILE.not"}, "no such file"},
		"unknown key":                   {"listn: x", []string{"--config=FILE"}, "listn"},
		"number as duration":            {"drainTimeout: 10", []string{"--config=FILE"}, "unit"},
		"no duration":                   {"drainTimeout: soon", []string{"--config=FILE"}, "unit"},
		"negative quota":                {"clusterQuota: {works: -1}", append([]string{"--config=FILE"}, tls...), "clusterQuota: a quota is negative"},
		"clusters of a cluster":         {"clusterQuota: {clusters: 1}", append([]string{"--config=FILE"}, tls...), "quota of a source"},
		"no source serves registration": {"registration: {source: hub}", append([]string{"--config=FILE"}, tls...), "registration.source \"hub\" is no source"},
		"tokens without a source":       {"tokens: {audiences: [hawser], mapping: [{user: u, role: bootstrap}]}", append([]string{"--config=FILE"}, tls...), "tokens: a source publishes the keys that verify tokens"},
		"tokens in plaintext":           {"tokens: {audiences: [hawser]}", []string{"--insecure", "--listen=127.0.0.1:1", "--config=FILE"}, "tokens: tokens cannot be verified with insecure"},
		"agent by token": {
			"identities: [{commonName: x, role: source, name: hub}]\nregistration: {source: hub}\ntokens: {audiences: [hawser], mapping: [{user: u, role: agent, name: c1}]}",
			append([]string{"--config=FILE"}, tls...), "tokens: rule 1: a token cannot give the role agent",
		},
		"agent by rule": {"identities: [{commonName: x, role: agent, name: c1}]", append([]string{"--config=FILE"}, tls...), "identity rule 1"},
	} {
		_, err := loaded(t, c.file, c.args...)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, c.want)
		}
	}
}

func TestConfig_ReportsEverythingAtOnce(t *testing.T) {
	_, err := loaded(t, "", "--listen=x", "--data-dir=", "--max-event-bytes=-1")
	for _, want := range []string{"listen", "data-dir", "max-event-bytes", "TLS"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not mention %s", err, want)
		}
	}
}
