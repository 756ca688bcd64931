package doctor

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"

	"github.com/hawser-io/hawser/internal/identity"

	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
	transportmqtt "github.com/hawser-io/hawser/pkg/transport/mqtt"
)

// Transport is the way to one broker. [GRPC] and [MQTT] create one for each address.
type Transport struct {
	// broker is the configured value, addr its host:port, "" if it cannot be parsed. form describes the valid form.
	broker, addr, form string
	serverName         string
	// protocols are offered in the TLS handshake. mutual: the first of them is required, and each broker with it
	// requests a certificate.
	protocols []string
	mutual    bool
	// accepted returns, for a client without a certificate, the accepted identity.
	accepted func() string
	dial     func(context.Context, *run) (transport.Conn, error)
}

// GRPC returns the transports to brokers at host:port, with commas between them. serverName is the name that their
// certificates must have; empty means the host.
func GRPC(brokers, serverName string) (all []Transport) {
	for _, broker := range transport.SplitAddresses(brokers) {
		all = append(all, overGRPC(broker, serverName))
	}
	return all
}

func overGRPC(broker, serverName string) Transport {
	return Transport{
		broker: broker, addr: broker, form: "write the broker as host:port, as broker.example:8090", serverName: serverName,
		protocols: []string{"h2"}, mutual: true, accepted: func() string { return "anonymous: plaintext" },
		dial: func(ctx context.Context, k *run) (transport.Conn, error) {
			o := transportgrpc.Options{Target: broker, Insecure: k.Insecure, DialTimeout: k.Timeout, Proxy: k.settings(), Token: k.Identity.Bearer}
			if !k.Insecure {
				creds, err := k.Identity.Client(serverName, func(error) {})
				if err != nil {
					return nil, err
				}
				o.Credentials = creds
			}
			d, err := transportgrpc.NewDialer(o)
			if err != nil {
				return nil, err
			}
			return d.Dial(ctx)
		},
	}
}

// MQTT returns the transports to the brokers of o. They use TLS, Proxy and Insecure of the [Path], not those of o.
// The brokers store nothing for the client.
func MQTT(o transportmqtt.Options) (all []Transport) {
	for _, broker := range transport.SplitAddresses(o.Broker) {
		o.Broker = broker
		all = append(all, overMQTT(o))
	}
	return all
}

func overMQTT(o transportmqtt.Options) Transport {
	t := Transport{
		broker: o.Broker, form: "write the broker as host:port, as broker.example:8883, or as a URL that begins with mqtts:// or wss://",
		accepted: func() string {
			client := "the client " + o.ClientID
			if o.Login != nil {
				if user := o.Login().User; user != "" {
					client += fmt.Sprintf(" with the user name %q", user)
				}
			}
			return client + " is accepted, without a certificate"
		},
	}
	var websocket bool
	if addr, ws, err := transportmqtt.Address(o.Broker); err == nil {
		t.addr, websocket = addr, ws
	}
	if websocket {
		t.protocols = []string{"http/1.1"}
	}
	t.dial = func(ctx context.Context, k *run) (transport.Conn, error) {
		o := o
		o.Insecure, o.DialTimeout, o.Fleeting, o.Proxy = k.Insecure, k.Timeout, true, k.settings()
		if o.TLS = nil; !k.Insecure {
			o.TLS = func() *tls.Config { return k.seen.files.config }
		}
		d, err := transportmqtt.NewDialer(o)
		if err != nil {
			return nil, err
		}
		return d.Dial(ctx)
	}
	return t
}

// MQTTFile returns the transports to the brokers in a client's configuration file, and the client's certificate
// and CAs from that file. insecure allows plaintext to a broker on this machine. The client id differs from the
// client's own, because the broker would otherwise end the client's connection.
func MQTTFile(path string, filter transport.Filter, insecure bool) ([]Transport, identity.Driver, error) {
	o, f, err := transportmqtt.Load(path, filter, insecure, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, identity.Driver{}, err
	}
	o.ClientID += "-doctor"
	return MQTT(o), f.Driver, nil
}
