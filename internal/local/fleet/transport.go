package fleet

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/hawser-io/hawser/internal/local/thirdparty"
	"github.com/hawser-io/hawser/internal/mqttacl"
	"github.com/hawser-io/hawser/internal/pki"
)

// Transport is what goes between the parties of a fleet.
type Transport string

// The transports.
const (
	GRPC Transport = "grpc"
	// MQTT is Hawser's broker, to which all parties speak MQTT.
	MQTT Transport = "mqtt"
	// Mosquitto is a stock broker in the place of Hawser's.
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

// overMQTT tells whether parties speak MQTT.
func (c Config) overMQTT() bool { return c.Transport == MQTT || c.Transport == Mosquitto }

// mosquittoPort is where Mosquitto listens. Hawser's broker has one port for all.
const mosquittoPort = "8883"

// MQTTAddr is host:port for MQTT, of whoever is between the parties.
func (f *Fleet) MQTTAddr() string {
	if f.cfg.Transport == Mosquitto {
		return net.JoinHostPort(f.ip(Broker), mosquittoPort)
	}
	return f.BrokerAddr()
}

// transportArgs are what a program is told besides what deploy/ says.
func (f *Fleet) transportArgs(base string) []string {
	switch {
	case !f.cfg.overMQTT():
		return nil
	case base == Broker: // it has one port for all
		return nil
	case base == HubSource:
		return []string{"--transport=mqtt", "--transport-config=" + filepath.Join(f.Volume(HubSource, "tls"), hubSourceConfig)}
	}
	return []string{"--workload-source-driver=mqtt"}
}

// hubSourceConfig is the file that says how hub-source gets to the broker over
// MQTT, in the Secret with its certificate.
const hubSourceConfig = "mqtt.yaml"

// ConnectionFile is the file, in OCM's format, by which a party reaches the broker
// over the transport of the fleet.
func (f *Fleet) ConnectionFile(role pki.Role, name string) []byte {
	dir := f.PKI()
	files := fmt.Sprintf("caFile: %s\nclientCertFile: %s\nclientKeyFile: %s\n", dir.CACert(), dir.Cert(role, name), dir.Key(role, name))
	if !f.cfg.overMQTT() {
		return []byte("url: " + f.BrokerAddr() + "\n" + files)
	}
	topics := mqttacl.Usual(SourceID).Topics
	return fmt.Appendf(nil, "brokerHost: %s\n%stopics:\n  sourceEvents: %s\n  agentEvents: %s\n  sourceBroadcast: %s\n  agentBroadcast: %s\n",
		f.MQTTAddr(), files, topics.SourceEvents, topics.AgentEvents, topics.SourceBroadcast, topics.AgentBroadcast)
}

// newMosquitto makes a program of Mosquitto, with the configuration in deploy/ and
// rules for all parties.
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

// rules are those of hawser mqtt acl.
func (f *Fleet) rules() (string, error) {
	layout, principal := mqttacl.Usual(SourceID), func(role pki.Role, name string) mqttacl.Principal {
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

// brokerName is how people call what is between the parties.
func (f *Fleet) brokerName() string {
	if f.cfg.Transport == Mosquitto {
		return "Mosquitto"
	}
	return Broker
}
