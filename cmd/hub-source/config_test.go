package main

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/hawser-io/hawser/pkg/transport"
	transportmqtt "github.com/hawser-io/hawser/pkg/transport/mqtt"
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

// loaded is load with a configuration file ("" is none).
func loaded(t *testing.T, file string, args ...string) (*config, error) {
	t.Helper()
	if file != "" {
		path := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append([]string{"--config", path}, args...)
	}
	return load(args...)
}

// tls has the smallest set of flags for a real installation, except for the source id.
var tls = []string{"--broker", "broker.example.com:8090", "--tls-cert-file", "tls.crt", "--tls-key-file", "tls.key"}

func TestConfig_FlagsWinOverTheFile(t *testing.T) {
	c, err := loaded(t, `
sourceID: from-file
clusterSelector: region=eu
leaderElection: {leaseDuration: 60s, renewDeadline: 40s, resourceNamespace: other, identity: replica}
kubeAPIQPS: 7
`, append(tls, "--source-id=from-flag", "--leader-elect-lease-duration=50s")...)
	if err != nil {
		t.Fatal(err)
	}
	e := c.LeaderElection
	if c.SourceID != "from-flag" || time.Duration(e.LeaseDuration) != 50*time.Second {
		t.Errorf("flags lost: %+v", c)
	}
	if c.ClusterSelector != "region=eu" || time.Duration(e.RenewDeadline) != 40*time.Second || e.ResourceNamespace != "other" || c.KubeAPIQPS != 7 {
		t.Errorf("file lost: %+v", c)
	}
	if e.Identity != "replica" {
		t.Errorf("identity lost: %+v", c)
	}
	if !e.Enabled || e.ResourceName != program || c.KubeAPIBurst != 400 {
		t.Errorf("defaults lost: %+v", c)
	}
}

func TestConfig_ErrorNamesField(t *testing.T) {
	hub := append([]string{"--source-id=hub"}, tls...)
	for name, c := range map[string]struct {
		file string
		args []string
		want []string
	}{
		"nothing set":          {"", nil, []string{"source-id is empty", "host:port", "tls-cert-file"}},
		"bad source id":        {"", append(tls, "--source-id=Hub/1"), []string{`"Hub/1"`, "lower-case"}},
		"unknown key":          {"sourceName: hub\n", tls, []string{"sourceName"}},
		"no such file":         {"", append(hub, "--config=/nonexistent"), []string{"/nonexistent"}},
		"number as duration":   {"leaderElection: {retryPeriod: 2}\n", hub, []string{`"10s"`}},
		"both selectors":       {"", append(hub, "--cluster-selector=a=b", "--namespace-selector=a=b"), []string{"not both"}},
		"bad selector":         {"", append(hub, "--cluster-selector=a in"), []string{`"a in"`, "--cluster-selector"}},
		"plaintext elsewhere":  {"", []string{"--source-id=hub", "--insecure", "--broker=broker.example.com:8090"}, []string{"loopback"}},
		"plaintext and TLS":    {"", append(hub, "--insecure"), []string{"exclude each other"}},
		"key without cert":     {"", []string{"--source-id=hub", "--broker=b:1", "--tls-key-file=k"}, []string{"tls-cert-file"}},
		"lease too short":      {"", append(hub, "--leader-elect-lease-duration=5s"), []string{"lease duration 5s > renew deadline 10s"}},
		"no lease name":        {"", append(hub, "--leader-elect-resource-name="), []string{"--leader-elect=false"}},
		"no requests":          {"", append(hub, "--kube-api-qps=0"), []string{"kube-api-qps"}},
		"half a webhook":       {"", append(hub, "--webhook-listen=:9443", "--webhook-cert-file=c"), []string{"webhook-key-file", "HTTPS"}},
		"webhook without port": {"", append(hub, "--webhook-listen=9443", "--webhook-cert-file=c", "--webhook-key-file=k"), []string{`"9443"`, "0.0.0.0:9443"}},
		"webhook that is off":  {"webhook: {certFile: c}\n", hub, []string{"no use without webhook-listen"}},
		"limit above agents'":  {"", append(hub, "--webhook-manifest-limit=512001"), []string{"webhook-manifest-limit: 512001", "agents"}},
		"unknown gate":         {"featureGates: {ManifestWorkReplicaSet: true}\n", hub, []string{`"ManifestWorkReplicaSet"`, "CleanUpCompletedManifestWork, NilExecutorValidating"}},
		"gate without webhook": {"", append(hub, "--feature-gates=NilExecutorValidating=true"), []string{"NilExecutorValidating", "webhook-listen"}},
		"unknown transport":    {"", append(hub, "--transport=amqp"), []string{`"amqp"`, "grpc or mqtt"}},
		"mqtt without a file":  {"transport: mqtt\n", hub, []string{"transport-config"}},
		"a file for grpc":      {"transportConfig: mqtt.yaml\n", hub, []string{"transport-config is for transport mqtt"}},
		"bad admin port":       {"", append(hub, "--admin-listen=8082"), []string{`"8082"`, "host:port"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := loaded(t, c.file, c.args...)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not mention %q", err, want)
				}
			}
		})
	}
}

func TestConfig_SwitchesWebhookAndGatesOn(t *testing.T) {
	c, err := loaded(t, "featureGates: {CleanUpCompletedManifestWork: true}\nwebhook: {certFile: c, keyFile: k, manifestLimit: 1000}\n",
		append(tls, "--source-id=hub", "--webhook-listen=:9443", "--feature-gates=NilExecutorValidating=true")...)
	if err != nil {
		t.Fatal(err)
	}
	if h := c.Webhook; h.Listen != ":9443" || h.CertFile != "c" || h.KeyFile != "k" || h.ManifestLimit != 1000 ||
		!c.FeatureGates.Enabled(gateCleanUp) || !c.FeatureGates.Enabled(gateNilExecutor) {
		t.Errorf("read %+v, gates %s", h, c.FeatureGates.String())
	}
	if c, err = loaded(t, "", append(tls, "--source-id=hub")...); err != nil {
		t.Fatal(err)
	}
	if c.Webhook.Listen != "" || c.Webhook.ManifestLimit != 512000 || c.FeatureGates.Enabled(gateCleanUp) || c.FeatureGates.Enabled(gateNilExecutor) {
		t.Errorf("without settings: %+v, gates %s", c.Webhook, c.FeatureGates.String())
	}
}

func TestConfig_AcceptsPlaintextOnLoopback(t *testing.T) {
	if _, err := loaded(t, "", "--source-id=hub", "--insecure", "--broker=127.0.0.1:8090", "--leader-elect=false"); err != nil {
		t.Error(err)
	}
}

// mqttFile writes a file of OCM's mqtt driver for a source, with more text at its end.
func mqttFile(t *testing.T, source, more string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mqtt.yaml")
	text := "brokerHost: 127.0.0.1:1883\ntopics:\n  sourceEvents: sources/" + source + "/clusters/+/sourceevents\n  agentEvents: sources/" + source + "/clusters/+/agentevents\n" + more
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// One key moves hub-source to MQTT; the settings for gRPC may stay. Keys without effect are named.
func TestConfig_MovesToMQTT(t *testing.T) {
	c, err := loaded(t, "transport: mqtt\n", append(tls, "--source-id=hub", "--transport-config="+mqttFile(t, "hub", "keepalive: 5\n"))...)
	if err != nil {
		t.Fatal(err)
	}
	c.Insecure = true
	var log bytes.Buffer
	d, err := c.dialer(prometheus.NewRegistry(), slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := d.(*transport.ReloadingDialer[*transportmqtt.File]); !ok || c.Broker != "127.0.0.1:1883" || !strings.Contains(log.String(), "keepalive") {
		t.Errorf("dialer %T to %s; log %s", d, c.Broker, log.String())
	}
}

func TestServe_ErrorNamesUnreachableAddress(t *testing.T) {
	dir := t.TempDir()
	of := mqttFile(t, "other", "")
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no kubeconfig":   {[]string{"--insecure", "--broker=127.0.0.1:8090", "--kubeconfig=" + filepath.Join(dir, "none")}, "find the kube-apiserver"},
		"no certificate":  {[]string{"--broker=127.0.0.1:8090", "--tls-cert-file=" + filepath.Join(dir, "none"), "--tls-key-file=k"}, "none"},
		"another source":  {[]string{"--insecure", "--transport=mqtt", "--transport-config=" + of}, `names the source "other", but this client is for the source "hub"`},
		"no such file":    {[]string{"--insecure", "--transport=mqtt", "--transport-config=none"}, "transport-config: open none"},
		"bad log level":   {[]string{"--insecure", "--broker=127.0.0.1:8090", "--log-level=loud"}, "loud"},
		"unknown flag":    {[]string{"--colour"}, "--colour"},
		"stray arguments": {[]string{"start"}, "start"},
	} {
		t.Run(name, func(t *testing.T) {
			root := command(io.Discard, io.Discard)
			root.SetArgs(append([]string{"--source-id=hub"}, c.args...))
			if err := root.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("ended with %v", err)
			}
		})
	}
}

func TestCommand_PrintsVersionAndHelp(t *testing.T) {
	for arg, want := range map[string]string{"version": program, "--help": "--source-id"} {
		var out bytes.Buffer
		root := command(&out, io.Discard)
		root.SetArgs([]string{arg})
		if err := root.ExecuteContext(t.Context()); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%s printed %q, %v", arg, out.String(), err)
		}
	}
}

// TestConfig_Proxy: over gRPC and MQTT a flag overrides the file. No program listens at these proxies; the
// error names the proxy that was used.
func TestConfig_Proxy(t *testing.T) {
	for name, c := range map[string]struct {
		file string
		args []string
		want string
	}{
		"file":      {"proxy: http://u:secret@127.0.0.1:2\n", []string{"--broker=127.0.0.1:1"}, "through the proxy http://u:xxxxx@127.0.0.1:2: "},
		"flag":      {"proxy: http://u:secret@127.0.0.1:2\n", []string{"--broker=127.0.0.1:1", "--proxy=http://127.0.0.1:4"}, "through the proxy http://127.0.0.1:4: "},
		"mqtt":      {"transport: mqtt\n", []string{"--transport-config=" + mqttFile(t, "hub", "proxy: http://u:secret@127.0.0.1:2\n")}, "through the proxy http://u:xxxxx@127.0.0.1:2: "},
		"mqtt flag": {"transport: mqtt\n", []string{"--proxy=http://127.0.0.1:4", "--transport-config=" + mqttFile(t, "hub", "proxy: http://u:secret@127.0.0.1:2\n")}, "through the proxy http://127.0.0.1:4: "},
	} {
		cfg, err := loaded(t, c.file, append(c.args, "--source-id=hub", "--insecure")...)
		if err != nil {
			t.Fatal(name, err)
		}
		d, err := cfg.dialer(prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(name, err)
		}
		if _, err := d.Dial(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, err := loaded(t, "proxy: u:secret@proxy.example\n", append(tls, "--source-id=hub")...); err == nil || !strings.Contains(err.Error(), "http://proxy.example:3128") || strings.Contains(err.Error(), "secret") {
		t.Errorf("a proxy that is none: %v", err)
	}
}
