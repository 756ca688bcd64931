package fleet

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/hawser-io/hawser/internal/local/thirdparty"
	"github.com/hawser-io/hawser/internal/mqttacl"
	"github.com/hawser-io/hawser/internal/pki"
)

// Transport is the transport between the programs of a fleet.
type Transport string

// The transports.
const (
	GRPC Transport = "grpc"
	// MQTT: all programs use MQTT to the Hawser broker.
	MQTT Transport = "mqtt"
	// Mosquitto: Mosquitto is the broker, instead of the Hawser broker.
	Mosquitto Transport = "mosquitto"
)

// Set implements the flag of the demo.
func (t *Transport) Set(s string) error {
	switch Transport(s) {
	case GRPC, MQTT, Mosquitto:
		*t = Transport(s)
		return nil
	}
	return fmt.Errorf("use %s, %s or %s", GRPC, MQTT, Mosquitto)
}

// String implements the flag of the demo.
func (t *Transport) String() string { return string(*t) }

// Type implements the flag of the demo.
func (t *Transport) Type() string { return "transport" }

// overMQTT reports whether the programs use MQTT.
func (c Config) overMQTT() bool { return c.Transport == MQTT || c.Transport == Mosquitto }

// mosquittoPort is the port of Mosquitto. The Hawser broker has one port for all protocols.
const mosquittoPort = "8883"

// MQTTAddr is the host:port of the fleet's first broker for MQTT.
func (f *Fleet) MQTTAddr() string {
	addr, _, _ := strings.Cut(f.mqttAddrs(), ",")
	return addr
}

// mqttAddrs lists the addresses of all brokers for MQTT.
func (f *Fleet) mqttAddrs() string {
	if f.cfg.Transport == Mosquitto {
		return net.JoinHostPort(f.ip(Broker), mosquittoPort)
	}
	return f.brokerAddrs()
}

// transportArgs returns the additional arguments of a program for the transport.
func (f *Fleet) transportArgs(base string) []string {
	switch {
	case !f.cfg.overMQTT():
		return nil
	case base == Broker: // it has one port for all protocols
		return nil
	case base == HubSource:
		return []string{"--transport=mqtt", "--transport-config=" + filepath.Join(f.Volume(HubSource, "tls"), hubSourceConfig)}
	}
	return []string{"--workload-source-driver=mqtt"}
}

// hubSourceConfig is hub-source's MQTT configuration file, in the Secret with its certificate.
const hubSourceConfig = "mqtt.yaml"

// ConnectionFile returns a client's configuration file of the broker connection, in OCM's format, for the
// transport of the fleet.
func (f *Fleet) ConnectionFile(role pki.Role, name string) []byte {
	dir := f.PKI()
	files := fmt.Sprintf("caFile: %s\nclientCertFile: %s\nclientKeyFile: %s\n", dir.CACert(), dir.Cert(role, name), dir.Key(role, name))
	if !f.cfg.overMQTT() {
		return []byte("url: " + f.brokerAddrs() + "\n" + files)
	}
	topics := mqttacl.DefaultLayout(SourceID).Topics
	return fmt.Appendf(nil, "brokerHost: %s\n%stopics:\n  sourceEvents: %s\n  agentEvents: %s\n  sourceBroadcast: %s\n  agentBroadcast: %s\n",
		f.mqttAddrs(), files, topics.SourceEvents, topics.AgentEvents, topics.SourceBroadcast, topics.AgentBroadcast)
}

// newMosquitto makes the Mosquitto program, with the configuration in deploy/ and access rules for all clients.
func (f *Fleet) newMosquitto(ctx context.Context) (*Program, error) {
	program, err := thirdparty.FetchMosquitto(ctx, f.cfg.Root, nil)
	if err != nil {
		return nil, err
	}
	dir, keys := filepath.Join(f.cfg.Dir, Broker), f.PKI()
	files := thirdparty.Files{CA: keys.CACert(), Cert: keys.Cert(pki.Broker, Broker), Key: keys.Key(pki.Broker, Broker), ACL: filepath.Join(dir, "acl")}
	text, err := thirdparty.Deployed(f.cfg.Root, dir, files)
	if err != nil {
		return nil, err
	}
	rules, err := f.rules()
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(files.ACL, []byte(rules), 0o600); err != nil {
		return nil, err
	}
	spec, err := thirdparty.Config{Program: program, Dir: dir, Addr: f.MQTTAddr(), Text: text}.Spec()
	if err != nil {
		return nil, err
	}
	return &Program{printf: f.cfg.Printf, spec: spec}, nil
}

// rules returns the access rules of hawser mqtt acl.
func (f *Fleet) rules() (string, error) {
	layout, principal := mqttacl.DefaultLayout(SourceID), func(role pki.Role, name string) mqttacl.Principal {
		user, _ := pki.Subject(role, name)
		return mqttacl.Principal{Name: name, User: user, ClientID: user}
	}
	source, err := layout.OfSource(principal(pki.Source, SourceID))
	if err != nil {
		return "", err
	}
	rules := []mqttacl.Rules{source}
	for _, c := range f.cfg.Clusters {
		r, err := layout.OfAgent(principal(pki.Agent, c))
		if err != nil {
			return "", err
		}
		rules = append(rules, r)
	}
	return mqttacl.Mosquitto(rules), nil
}

// brokerName returns the name of the broker for display.
func (f *Fleet) brokerName() string {
	if f.cfg.Transport == Mosquitto {
		return "Mosquitto"
	}
	return Broker
}
