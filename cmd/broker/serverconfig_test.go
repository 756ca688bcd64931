package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/testkit/syncbuffer"
)

// ocmServer writes a configuration of OCM's gRPC server, and returns the flag for it.
func ocmServer(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return "--server-config=" + file
}

// everything is a file with all keys of OCM's server, in all accepted forms.
const everything = `
tls_cert_file: /test/tls.crt
tls_key_file: /test/tls.key
client_ca_file: /test/ca.crt
tls_min_version: VersionTLS12
tls_max_version: VersionTLS13
cipher_suites: TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
server_bind_port: "9999"
max_concurrent_streams: 100
max_receive_message_size: 204800
max_send_message_size: 2048
write_buffer_size: 1024
read_buffer_size: 1024
connection_timeout: 60s
max_connection_age: 3600000000000
client_min_ping_interval: 10s
server_ping_interval: 60s
server_ping_timeout: 20s
permit_ping_without_stream: true
cert_watch_interval: 60s
`

func TestServerConfig_IsReadAsItIs(t *testing.T) {
	c, err := load(ocmServer(t, everything))
	if err != nil {
		t.Fatal(err)
	}
	if c.TLS.CertFile != "/test/tls.crt" || c.TLS.KeyFile != "/test/tls.key" || c.TLS.ClientCAFile != "/test/ca.crt" ||
		c.Listen != "0.0.0.0:9999" || c.MaxEventBytes != 204800-beside {
		t.Errorf("%+v", c)
	}
	tls := []string{"--tls-cert-file=a", "--tls-key-file=b", "--client-ca-file=c"}
	c, err = load(append(tls, ocmServer(t, "server_bind_port: 9999\nmax_receive_message_size: 4194304\n"))...)
	if err != nil || c.Listen != "0.0.0.0:9999" || c.MaxEventBytes != broker.DefaultMaxEventBytes || c.TLS.KeyFile != "b" {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err = load(append(tls, ocmServer(t, ""))...); err != nil || c.Listen != defaults().Listen {
		t.Errorf("an empty file: %+v, %v", c, err)
	}
}

// The broker's own file and flags override the file, even with default values.
func TestServerConfig_LosesAgainstOurOwn(t *testing.T) {
	c, err := loaded(t, "listen: 0.0.0.0:8090\nmaxEventBytes: 70000\ntls: {certFile: own.crt}\n",
		"--config=FILE", "--tls-key-file=own.key", "--max-event-bytes=80000", "--proxy-protocol-from=10.0.0.0/24", ocmServer(t, everything))
	if err != nil {
		t.Fatal(err)
	}
	if c.TLS.CertFile != "own.crt" || c.TLS.KeyFile != "own.key" || c.TLS.ClientCAFile != "/test/ca.crt" || c.Listen != "0.0.0.0:8090" ||
		c.MaxEventBytes != 80000 || !slices.Equal(c.ProxyProtocolFrom, []string{"10.0.0.0/24"}) {
		t.Errorf("%+v", c)
	}
}

// A key of the broker's own file can name the file too.
func TestServerConfig_ByKey(t *testing.T) {
	file := strings.TrimPrefix(ocmServer(t, everything), "--server-config=")
	if c, err := loaded(t, "serverConfig: "+file+"\n", "--config=FILE"); err != nil || c.Listen != "0.0.0.0:9999" {
		t.Errorf("%+v, %v", c, err)
	}
}

// Each key without effect is logged once, with the reason, and so is each unknown key.
func TestServerConfig_ReportsIneffectiveSettings(t *testing.T) {
	c, err := load("--listen=127.0.0.1:1", ocmServer(t, everything+"colour: red\nshape: round\n"))
	if err != nil {
		t.Fatal(err)
	}
	log := &syncbuffer.Buffer{}
	if err := c.logServerConfig(slog.New(slog.NewTextHandler(log, nil))); err != nil {
		t.Fatal(err)
	}
	message := strings.Split(strings.TrimSpace(log.String()), "\n")
	for key, reason := range withoutEffect {
		n := 0
		for _, line := range message {
			if strings.Contains(line, " key="+key+" ") && strings.Contains(line, "level=WARN") && strings.Contains(line, reason) {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s is logged %d times", key, n)
		}
	}
	all := log.String()
	if !strings.Contains(all, "overrides it: --listen=127.0.0.1:1") || !strings.Contains(all, `keys="[colour shape]"`) || len(message) != len(withoutEffect)+2 {
		t.Errorf("the log is\n%s", all)
	}
	c.ServerConfig = ""
	if err := c.logServerConfig(nil); err != nil {
		t.Error(err)
	}
}

func TestServerConfig_Refuses(t *testing.T) {
	for what, c := range map[string]struct{ text, want string }{
		"port of letters": {"server_bind_port: grpc\n", "use a number from 1 to 65535"},
		"port 0":          {"server_bind_port: 0\n", "use a number from 1 to 65535"},
		"a large port":    {"server_bind_port: \"65536\"\n", "use a number from 1 to 65535"},
		"no room":         {"max_receive_message_size: 4096\n", "use more than 4096"},
		"a list":          {"tls_cert_file: [a]\n", "tls_cert_file"},
		"no YAML":         {"a: [\n", "line"},
		"no TLS":          {"server_bind_port: 1\n", "TLS needs"},
	} {
		if _, err := load(ocmServer(t, c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
	if _, err := load("--server-config=/none"); err == nil || !strings.Contains(err.Error(), "omit it") {
		t.Errorf("a file that is not there: %v", err)
	}
}

// docs/ocm.md has every key, and a valid example.
func TestServerConfig_IsDocumented(t *testing.T) {
	b, err := os.ReadFile("../../docs/ocm.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(b), "### The configuration of OCM's gRPC server\n")
	section, _, _ = strings.Cut(section, "\n### ")
	_, example, _ := strings.Cut(section, "```yaml\n")
	example, rest, closed := strings.Cut(example, "```\n")
	if !ok || !closed {
		t.Fatal("docs/ocm.md has no such section")
	}
	for line := range strings.Lines(everything) {
		if key, _, ok := strings.Cut(line, ":"); ok && !strings.Contains(rest, "`"+key+"`") {
			t.Errorf("docs/ocm.md does not list %s", key)
		}
	}
	c, err := load(ocmServer(t, example))
	if err != nil || c.TLS.CertFile != "/etc/hawser/tls/tls.crt" || c.MaxEventBytes != broker.DefaultMaxEventBytes {
		t.Errorf("the example: %+v, %v", c, err)
	}
	if s, err := parseServerConfig([]byte(everything)); err != nil || len(s.unknown) != 0 || len(s.idle) != len(withoutEffect) {
		t.Errorf("%+v, %v", s, err)
	}
}

// FuzzServerConfig: any file is rejected, or has a valid port and a valid size.
func FuzzServerConfig(f *testing.F) {
	f.Add([]byte(everything))
	f.Add([]byte("server_bind_port: 8090\nother: {a: 1}\n"))
	f.Add([]byte("a: &a [*a]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := parseServerConfig(text)
		if err != nil {
			return
		}
		for _, x := range s.settings(defaults()) {
			if x.value == "" || strings.HasPrefix(x.value, "-") || strings.HasSuffix(x.value, ":0") {
				t.Errorf("taken: %+v", x)
			}
		}
	})
}
