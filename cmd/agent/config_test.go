package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/transport"
	transportmqtt "github.com/hawser-io/hawser/pkg/transport/mqtt"
)

func parse(t *testing.T, args ...string) (*config, error) {
	t.Helper()
	c := defaults()
	f := pflag.NewFlagSet(program, pflag.ContinueOnError)
	c.addFlags(f)
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	return c, c.validate()
}

func TestConfig_FlagsOfOCM(t *testing.T) {
	c, err := parse(t, "--cluster-name=c1", "--agent-id=a", "--kube-api-qps=7", "--kube-api-burst=9", "--status-sync-interval=30s", "--appliedmanifestwork-eviction-grace-period=5m",
		"--workload-agent-workers=3", "--workload-source-driver=grpc", "--workload-source-config=/x", "--cloudevents-client-id=id", "--spoke-kubeconfig=/k",
		"--namespace=ns", "--disable-leader-election", "--leader-election-lease-duration=30s", "--leader-election-renew-deadline=20s", "--leader-election-retry-period=5s",
		"--feature-gates=ExecutorValidatingCaches=true,RawFeedbackJsonString=true", "--max-json-raw-length=100")
	if err != nil {
		t.Fatal(err)
	}
	want := defaults()
	want.clusterName, want.agentID, want.kubeAPIQPS, want.kubeAPIBurst, want.statusSyncInterval = "c1", "a", 7, 9, 30*time.Second
	want.evictionGrace = 5 * time.Minute
	want.workers, want.sourceConfig, want.clientID, want.spokeKubeconfig = 3, "/x", "id", "/k"
	want.namespace, want.noLeaderElection = "ns", true
	want.leaseDuration, want.renewDeadline, want.retryPeriod = 30*time.Second, 20*time.Second, 5*time.Second
	want.maxRawLength = 100
	if err := want.gates.Set("ExecutorValidatingCaches=true,RawFeedbackJsonString=true"); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(c, want) || !c.gates.Enabled(gateExecutorCaches) {
		t.Fatalf("got %+v\nwant %+v", c, want)
	}
	if c, err = parse(t, "--spoke-cluster-name=c2"); err != nil || c.clusterName != "c2" {
		t.Fatalf("got %+v, %v", c, err)
	}
}

func TestConfig_EverythingWrongIsNamed(t *testing.T) {
	_, err := parse(t, "--max-json-raw-length=2048", "--kube-api-qps=-1", "--profile=tiny", "--status-sync-interval=0s", "--appliedmanifestwork-eviction-grace-period=-1s", "--workload-agent-workers=0", "--workload-source-driver=kube", "--workload-source-config=", "--admin-listen=x",
		"--namespace=Name Space", "--leader-election-renew-deadline=3m")
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		"spoke-cluster-name is empty", "kube-api-qps -1", `profile "tiny": use standard or small`, "status-sync-interval 0s", "eviction-grace-period -1s", "max-json-raw-length 2048: use 1 to 1024", "workload-agent-workers must be >= 1, got 0",
		`workload-source-driver "kube" is not supported by this agent: use grpc`, "workload-source-config is empty", `admin-listen "x"`, `namespace "Name Space"`, "renew deadline 3m0s",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in\n%v", want, err)
		}
	}
	if _, err := parse(t, "--cluster-name=c1", "--disable-leader-election", "--leader-election-renew-deadline=3m"); err != nil {
		t.Errorf("times of an election that is switched off: %v", err)
	}
	if _, err := parse(t, "--cluster-name=Not A Name"); err == nil {
		t.Error("a name no cluster can have: accepted")
	}
}

func TestConfig_KubeconfigIsNeverTakenByAccident(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBECONFIG", "")
	c := defaults()
	if _, err := c.cluster(); err == nil || !strings.Contains(err.Error(), "--spoke-kubeconfig") {
		t.Fatalf("got %v", err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(`{"clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}],"contexts":[{"name":"x","context":{"cluster":"c"}}],"current-context":"x"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", path)
	if r, err := c.cluster(); err != nil || r.Host != "https://127.0.0.1:1" {
		t.Fatalf("got %v, %v", r, err)
	}
	c.spokeKubeconfig = path + "-none"
	if _, err := c.cluster(); err == nil {
		t.Fatal("a kubeconfig that is not there: accepted")
	}
}

// files writes the certificates of an agent and returns the directory.
func files(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	valid := pki.Starting(time.Now(), time.Hour)
	ca, err := pki.NewAuthority("test", valid)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(pki.Request{Role: pki.Agent, Name: "c1", Valid: valid})
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"ca.crt": ca.CertificatePEM(), "tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func driverFile(t *testing.T, dir, text string) string {
	t.Helper()
	encoded := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return base64.StdEncoding.EncodeToString(b)
	}
	text = strings.NewReplacer("DIR", dir, "B64CA", encoded("ca.crt"), "B64CERT", encoded("tls.crt"), "B64KEY", encoded("tls.key")).Replace(text)
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDriver_FilesOfOCM(t *testing.T) {
	dir := files(t)
	log := slog.New(slog.DiscardHandler)
	for name, text := range map[string]string{
		"files": `
url: broker.example.com:8090
caFile: DIR/ca.crt
clientCertFile: DIR/tls.crt
clientKeyFile: DIR/tls.key
keepAliveConfig: {enable: true, time: 30s, timeout: 10s, permitWithoutStream: false}
serverHealthinessTimeout: 20s
`,
		"data, which wins over files": `
url: broker.example.com:8090
caFile: /none
caData: B64CA
clientCertData: B64CERT
clientKeyFile: DIR/tls.key
`,
		"json": `{"url":"broker.example.com:8090","clientCertData":"B64CERT","clientKeyData":"B64KEY"}`,
	} {
		t.Run(name, func(t *testing.T) {
			d, err := readDriver(flagSource, driverFile(t, dir, text), false)
			if err != nil {
				t.Fatal(err)
			}
			if d.URL != "broker.example.com:8090" || d.unknown != nil {
				t.Errorf("got %+v", d)
			}
			if _, err := d.dialer(false, log); err != nil {
				t.Error(err)
			}
			if name == "files" && time.Duration(*d.ServerHealthinessTimeout) != 20*time.Second {
				t.Errorf("got %v", d.ServerHealthinessTimeout)
			}
		})
	}
	d, err := readDriver(flagSource, driverFile(t, dir, "url: 127.0.0.1:8090\nsomething: 1\nother: x\n"), true)
	if err != nil || strings.Join(d.unknown, " ") != "other something" {
		t.Fatalf("got %+v, %v", d, err)
	}
	if _, err := d.dialer(true, log); err != nil {
		t.Error(err)
	}
}

func TestDriver_ErrorNamesFieldAndRemedy(t *testing.T) {
	dir := files(t)
	pair := "clientCertFile: DIR/tls.crt\nclientKeyFile: DIR/tls.key\n"
	for name, c := range map[string]struct {
		text     string
		insecure bool
		want     string
	}{
		"no url":                    {pair, false, `url "": use host:port`},
		"url with a scheme":         {"url: https://broker:8090\n" + pair, false, "use host:port"},
		"only a certificate":        {"url: b:1\nclientCertFile: DIR/tls.crt\n", false, "clientCertFile and clientKeyFile"},
		"only a key, and a token":   {"url: b:1\ntoken: x\nclientKeyFile: DIR/tls.key\n", false, "clientCertFile and clientKeyFile"},
		"a token of spaces":         {"url: b:1\ntoken: '  '\n", false, "To request to join, give token or tokenFile"},
		"insecure with certificate": {"url: 127.0.0.1:1\n" + pair, true, "exclude each other"},
		"insecure to elsewhere":     {"url: broker:1\n", true, "loopback address only"},
		"no unit":                   {"url: b:1\nserverHealthinessTimeout: 20\n" + pair, false, "write it with a unit"},
		"not positive":              {"url: b:1\nserverHealthinessTimeout: -1s\n" + pair, false, "positive"},
		"not YAML":                  {"url: [", false, "config.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := readDriver(flagSource, driverFile(t, dir, c.text), c.insecure); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
		})
	}
	if _, err := readDriver(flagSource, filepath.Join(dir, "none"), false); err == nil || !strings.Contains(err.Error(), "workload-source-config") {
		t.Errorf("got %v", err)
	}
	for name, text := range map[string]string{
		"CA without PEM":   "url: b:1\ncaData: eA==\n" + pair,
		"pair without PEM": "url: b:1\nclientCertData: eA==\nclientKeyData: eA==\n",
		"missing file":     "url: b:1\nclientCertData: B64CERT\nclientKeyFile: /none\n",
		"missing files":    "url: b:1\nclientCertFile: /none\nclientKeyFile: /none\n",
	} {
		d, err := readDriver(flagSource, driverFile(t, dir, text), false)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.dialer(false, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestCommand_VersionAndErrors(t *testing.T) {
	run := func(args ...string) (string, error) {
		var out bytes.Buffer
		c := command(&out, &out)
		c.SetArgs(args)
		err := c.ExecuteContext(context.Background())
		return out.String(), err
	}
	if out, err := run("version"); err != nil || !strings.HasPrefix(out, program+" ") {
		t.Errorf("version: %q, %v", out, err)
	}
	if out, err := run("--help"); err != nil || !strings.Contains(out, "--spoke-cluster-name") {
		t.Errorf("help: %q, %v", out, err)
	}
	for _, args := range [][]string{nil, {"something"}, {"--cluster-name=c1", "--log-level=loud"}, {"--cluster-name=c1", "--workload-source-config=/none"}} {
		if _, err := run(args...); err == nil {
			t.Errorf("%q: accepted", args)
		}
	}
}

// A file of OCM's mqtt driver moves the agent to MQTT.
func TestDriver_MQTT(t *testing.T) {
	dir := files(t)
	const topics = "topics:\n  sourceEvents: sources/hub/clusters/+/sourceevents\n  agentEvents: sources/hub/clusters/+/agentevents\n"
	const tls = "caFile: DIR/ca.crt\nclientCertFile: DIR/tls.crt\nclientKeyFile: DIR/tls.key\n"
	c := defaults()
	c.clusterName, c.sourceDriver = "c1", driverMQTT
	if err := c.validate(); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	c.sourceConfig = driverFile(t, dir, "brokerHost: broker.example.com:8883\nbroker: x\n"+tls+topics)
	b, err := c.reachBroker(prometheus.NewRegistry(), slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := b.dialer.(*transport.ReloadingDialer[*transportmqtt.File]); !ok || b.current().addr != "broker.example.com:8883" || !strings.Contains(log.String(), "keys=[broker]") {
		t.Errorf("dialer %T to %s; log %s", b.dialer, b.current().addr, log.String())
	}
	if trusted, err := b.trusted(); err != nil || len(trusted) != 1 {
		t.Errorf("trusted are %v, %v; want the CA of the file", trusted, err)
	}
	for text, want := range map[string]string{
		"url: broker.example.com:8090\n" + tls:                            "brokerHost",
		"brokerHost: b:1\n" + tls:                                         "topics.sourceEvents",
		"brokerHost: b:1\n" + tls + strings.ReplaceAll(topics, "+", "c2"): `names the cluster "c2", but this client is for the cluster "c1"`,
	} {
		c.sourceConfig = driverFile(t, dir, text)
		if _, err := c.reachBroker(prometheus.NewRegistry(), slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}
