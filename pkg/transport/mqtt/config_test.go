package mqtt

import (
	"encoding/base64"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

const fileTopics = `
topics:
  sourceEvents: sources/source1/clusters/+/sourceevents
  agentEvents: sources/source1/clusters/+/agentevents
`

func newAuthority(t testing.TB) *pki.Authority {
	t.Helper()
	ca, err := pki.NewAuthority("test", pki.Starting(time.Now(), time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func issue(t testing.TB, ca *pki.Authority, role pki.Role, name string, hosts ...string) pki.Pair {
	t.Helper()
	p, err := ca.Issue(pki.Request{Role: role, Name: name, Hosts: hosts, Valid: pki.Starting(time.Now(), time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

var (
	asAgent = transport.Filter{Cluster: "cluster1", DataType: codec.ManifestBundles}
	quiet   = slog.New(slog.DiscardHandler)
)

// TestLoad_OCMsKeys: all keys of a file of Open Cluster Management are accepted, and unknown keys are listed.
func TestLoad_OCMsKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	writeFile(t, path, `
brokerHost: 127.0.0.1:1883
username: u
password: p
keepAlive: 45
dialTimeout: 7s
pubQoS: 2
subQoS: 0
broker: x
topics:
  sourceEvents: sources/source1/clusters/+/sourceevents
  agentEvents: sources/source1/clusters/+/agentevents
  sourceBroadcast: sources/+/sourcebroadcast
  agentBroadcast: clusters/+/agentbroadcast
  spec: sources/x/spec
`)
	o, f, err := Load(path, asAgent, true, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"broker", "topics.spec"}, f.Unknown); d != "" {
		t.Errorf("unknown (-want +got):\n%s", d)
	}
	if o.Broker != "127.0.0.1:1883" || o.KeepAlive != 45*time.Second || o.DialTimeout != 7*time.Second || o.ClientID != "hawser-agent-cluster1" || o.TLS != nil || !o.Insecure {
		t.Errorf("%+v", o)
	}
	if l := o.Login(); l != (Login{"u", "p"}) {
		t.Errorf("%+v", l)
	}
	if o.Topics.AgentBroadcast != "clusters/+/agentbroadcast" {
		t.Errorf("%+v", o.Topics)
	}
	newDialer(t, o)
	if id := ClientID(transport.Filter{Source: "source1"}); id != "hawser-source-source1" {
		t.Error(id)
	}
}

func TestLoad_Errors(t *testing.T) {
	for name, c := range map[string]struct {
		text     string
		insecure bool
		want     string
	}{
		"no broker":              {fileTopics, true, "brokerHost"},
		"no port":                {"brokerHost: broker.example.com" + fileTopics, false, "host:port"},
		"another scheme":         {"brokerHost: http://broker.example.com" + fileTopics, false, "brokerHost"},
		"plaintext on a wire":    {"brokerHost: broker.example.com:1883" + fileTopics, true, "loopback"},
		"plaintext by scheme":    {"brokerHost: ws://127.0.0.1:1883" + fileTopics, false, "wss://"},
		"TLS by scheme":          {"brokerHost: mqtts://127.0.0.1:1883" + fileTopics, true, "mqtt://"},
		"CA and insecure":        {"caFile: ca.pem\nbrokerHost: 127.0.0.1:1883" + fileTopics, true, "exclude each other"},
		"certificate alone":      {"clientCertFile: x\nbrokerHost: 127.0.0.1:1883" + fileTopics, false, "needs its key"},
		"password and token":     {"password: x\nusername: u\ntoken: t\nbrokerHost: 127.0.0.1:1883" + fileTopics, true, "token"},
		"password alone":         {"password: x\nbrokerHost: 127.0.0.1:1883" + fileTopics, true, "username"},
		"no topics":              {"brokerHost: 127.0.0.1:1883", true, "topics.sourceEvents"},
		"topics are a list":      {"brokerHost: 127.0.0.1:1883\ntopics: []", true, "topics"},
		"another cluster":        {"brokerHost: 127.0.0.1:1883\ntopics: {sourceEvents: sources/a/clusters/cluster2/sourceevents, agentEvents: sources/a/clusters/+/agentevents}", true, "cluster2"},
		"timeout without a unit": {"dialTimeout: 7\nbrokerHost: 127.0.0.1:1883" + fileTopics, true, "unit"},
		"negative timeout":       {"dialTimeout: -7s\nbrokerHost: 127.0.0.1:1883" + fileTopics, true, "positive"},
		"QoS":                    {"pubQoS: 3\nbrokerHost: 127.0.0.1:1883" + fileTopics, true, "pubQoS"},
		"no YAML":                {"\t{", true, "config.yaml"},
		"CA that is none":        {"caData: eA==\nbrokerHost: 127.0.0.1:1883" + fileTopics, false, "no PEM certificate"},
		"files that are missing": {"caFile: /none\nbrokerHost: 127.0.0.1:1883" + fileTopics, false, "/none"},
	} {
		path := filepath.Join(t.TempDir(), "config.yaml")
		writeFile(t, path, c.text)
		if _, _, err := Load(path, asAgent, c.insecure, quiet); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := Load("/none/config.yaml", asAgent, true, quiet); err == nil {
		t.Error("no file")
	}
}

// TestLoad_ReadsSecretsAgain: the next connection uses the current password and certificates, from the file or
// from files that it names. Unusable ones are ignored.
func TestLoad_ReadsSecretsAgain(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	path := at("config.yaml")
	pair := func(name string) (cert, key []byte) {
		p := issue(t, newAuthority(t), pki.Agent, name)
		return p.CertPEM, p.KeyPEM
	}
	inline := func(password string, cert, key []byte) string {
		return "brokerHost: 127.0.0.1:8883\nusername: u\npassword: " + password +
			"\nclientCertData: " + base64.StdEncoding.EncodeToString(cert) + "\nclientKeyData: " + base64.StdEncoding.EncodeToString(key) + fileTopics
	}
	cert, key := pair("one")
	writeFile(t, path, inline("first", cert, key))
	o, _, err := Load(path, asAgent, false, quiet)
	if err != nil {
		t.Fatal(err)
	}
	first := o.TLS()
	if len(first.Certificates) != 1 || o.Login().Password != "first" {
		t.Fatalf("%+v %+v", first, o.Login())
	}
	cert, key = pair("two")
	writeFile(t, path, inline("second", cert, key))
	if string(o.TLS().Certificates[0].Certificate[0]) == string(first.Certificates[0].Certificate[0]) || o.Login().Password != "second" {
		t.Error("the content of the file is not read again")
	}
	second := o.TLS()
	writeFile(t, path, "brokerHost: [")
	if string(o.TLS().Certificates[0].Certificate[0]) != string(second.Certificates[0].Certificate[0]) || o.Login().Password != "second" {
		t.Error("a broken file took the place of a good one")
	}
	// One file is named and the other one is inline.
	writeFile(t, at("cert.pem"), string(cert))
	writeFile(t, at("key.pem"), string(key))
	writeFile(t, path, "brokerHost: 127.0.0.1:8883\nclientCertFile: "+at("cert.pem")+"\nclientKeyFile: "+at("key.pem")+"\ncaData: "+base64.StdEncoding.EncodeToString(cert)+fileTopics)
	third := o.TLS()
	if third.RootCAs == nil || len(third.Certificates) != 1 {
		t.Fatalf("%+v", third)
	}
	cert, key = pair("three")
	writeFile(t, at("cert.pem"), string(cert))
	writeFile(t, at("key.pem"), string(key))
	if string(o.TLS().Certificates[0].Certificate[0]) == string(third.Certificates[0].Certificate[0]) {
		t.Error("the certificate's file is not read again")
	}
	// Both are files.
	writeFile(t, path, "brokerHost: 127.0.0.1:8883\nclientCertFile: "+at("cert.pem")+"\nclientKeyFile: "+at("key.pem")+"\ncaFile: "+at("cert.pem")+fileTopics)
	if fourth := o.TLS(); fourth.RootCAs == nil || string(fourth.Certificates[0].Certificate[0]) == string(third.Certificates[0].Certificate[0]) || o.Login() != (Login{}) {
		t.Errorf("%+v", fourth)
	}
}

// TestOptions_Errors checks that errors name the invalid option.
func TestOptions_Errors(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"host:port":          func(o *Options) { o.Broker = "127.0.0.1" },
		"broker \"ws:\"":     func(o *Options) { o.Broker = "ws:" },
		"client id":          func(o *Options) { o.ClientID = "" },
		"1 to 128":           func(o *Options) { o.ClientID = strings.Repeat("x", 129) },
		"no credentials":     func(o *Options) { o.Insecure = false },
		"loopback":           func(o *Options) { o.Broker = "broker.example.com:1883" },
		"mqtts or wss":       func(o *Options) { o.Broker = "wss://127.0.0.1/mqtt" },
		"broker \"\"":        func(o *Options) { o.Broker = "127.0.0.1:1883," },
		"keep alive":         func(o *Options) { o.KeepAlive = 1500 * time.Millisecond },
		"largest event":      func(o *Options) { o.MaxEventBytes = -1 },
		"dial timeout":       func(o *Options) { o.DialTimeout = -1 },
		"topics.agentEvents": func(o *Options) { o.Topics.AgentEvents = "x" },
	} {
		o := Options{Broker: "127.0.0.1:1883", ClientID: "x", Insecure: true, Topics: testTopics}
		change(&o)
		if _, err := NewDialer(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	for broker, want := range map[string][]endpoint{
		"127.0.0.1:1883":                    {{"127.0.0.1", "1883", false, ""}},
		"mqtt://[::1]":                      {{"::1", "1883", false, "/"}},
		"ws://localhost/a/b?c=d":            {{"localhost", "80", true, "/a/b?c=d"}},
		"ws://localhost:9001":               {{"localhost", "9001", true, "/"}},
		"127.0.0.1:1883, ws://localhost/a ": {{"127.0.0.1", "1883", false, ""}, {"localhost", "80", true, "/a"}},
	} {
		_, e, err := (Options{Broker: broker, ClientID: "x", Insecure: true, Topics: testTopics}).withDefaults()
		if err != nil || !slices.Equal(e, want) {
			t.Errorf("%s: %+v, %v", broker, e, err)
		}
	}
}

func FuzzFile(f *testing.F) {
	f.Add([]byte("brokerHost: 127.0.0.1:1883\nusername: u\npassword: p\nkeepAlive: 4\ndialTimeout: 4s" + fileTopics))
	f.Add([]byte(`{"brokerHost":"wss://h/p","caData":"eA==","topics":{"x":1},"pubQoS":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := ParseFile(b)
		if err != nil {
			return
		}
		for _, insecure := range []bool{false, true} {
			if file.validate(insecure) != nil {
				continue
			}
			o := Options{Broker: file.BrokerHost, ClientID: "x", Topics: file.Topics, Insecure: true}
			if _, _, err := o.withDefaults(); err != nil && insecure {
				t.Fatalf("the file is good, but %v", err)
			}
		}
	})
}

// TestLoad_Token: the password of each connection is the current token in the file.
func TestLoad_Token(t *testing.T) {
	dir := t.TempDir()
	file, path := filepath.Join(dir, "token"), filepath.Join(dir, "config.yaml")
	writeFile(t, file, "first\n")
	writeFile(t, path, "brokerHost: 127.0.0.1:8883\ntokenFile: "+file+fileTopics)
	o, _, err := Load(path, asAgent, false, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if l := o.Login(); l != (Login{Password: "first"}) {
		t.Errorf("%+v", l)
	}
	writeFile(t, file, " second ")
	if l := o.Login(); l.Password != "second" {
		t.Errorf("%+v", l)
	}
}
