package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"sigs.k8s.io/yaml"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/identity"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
)

// The drivers.
const (
	driverGRPC = "grpc"
	driverMQTT = "mqtt"
)

// driver is the file of OCM's grpc driver: how to reach the broker.
type driver struct {
	URL string `json:"url"`

	// Data is PEM and wins over the file of the same name; files are read again
	// when they change.
	CAFile         string `json:"caFile"`
	CAData         []byte `json:"caData"`
	ClientCertFile string `json:"clientCertFile"`
	ClientCertData []byte `json:"clientCertData"`
	ClientKeyFile  string `json:"clientKeyFile"`
	ClientKeyData  []byte `json:"clientKeyData"`

	Token     string `json:"token"`
	TokenFile string `json:"tokenFile"`

	KeepAliveConfig json.RawMessage `json:"keepAliveConfig"`
	// ServerHealthinessTimeout is how long a silent broker counts as alive; the
	// broker sends a heartbeat every 10 s.
	ServerHealthinessTimeout *cmdline.Duration `json:"serverHealthinessTimeout"`

	// unknown keys, which OCM ignores.
	unknown []string
}

// readDriver reads and checks the file. insecure allows plaintext.
func readDriver(path string, insecure bool) (*driver, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("workload-source-config: %w", err)
	}
	d, err := parseDriver(b)
	if err == nil {
		err = d.validate(insecure)
	}
	if err != nil {
		return nil, fmt.Errorf("workload-source-config %s: %w", path, err)
	}
	return d, nil
}

func parseDriver(b []byte) (*driver, error) {
	d := &driver{}
	if err := yaml.Unmarshal(b, d); err != nil {
		return nil, err
	}
	var keys map[string]json.RawMessage
	if err := yaml.Unmarshal(b, &keys); err != nil {
		return nil, err
	}
	for k := range keys {
		if !slices.Contains(driverKeys(), k) {
			d.unknown = append(d.unknown, k)
		}
	}
	slices.Sort(d.unknown)
	return d, nil
}

func driverKeys() (keys []string) {
	for f := range reflect.TypeFor[driver]().Fields() {
		keys = append(keys, f.Tag.Get("json"))
	}
	return keys
}

// validate returns everything that is wrong, and what to do about it.
func (d *driver) validate(insecure bool) error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	host, _, err := net.SplitHostPort(d.URL)
	if err != nil || host == "" || strings.Contains(d.URL, "/") {
		wrong("url %q: use host:port, as broker.example.com:8090", d.URL)
	}
	if t := d.ServerHealthinessTimeout; t != nil && *t <= 0 {
		wrong("serverHealthinessTimeout %s: use a positive duration, as 30s", t)
	}
	if err := d.validateTLS(insecure, host); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// validateTLS: a certificate, or plaintext to a loopback host. host may be
// unknown.
func (d *driver) validateTLS(insecure bool, host string) error {
	switch {
	case d.Token != "" || d.TokenFile != "":
		return errors.New("token and tokenFile are not supported by this agent yet: use a client certificate (clientCertFile, clientKeyFile)")
	case insecure && d.hasTLS():
		return errors.New("--insecure and TLS settings exclude each other: drop one of them")
	case insecure && host != "" && !cmdline.Loopback(host):
		return fmt.Errorf("--insecure to %s: plaintext is allowed to a loopback address only, as 127.0.0.1:8090", d.URL)
	case !insecure && !(d.hasCert() && d.hasKey()):
		return errors.New("clientCertFile and clientKeyFile (or clientCertData and clientKeyData) are needed: the broker knows the cluster by its certificate; to try things out on one machine, use --insecure with a broker on 127.0.0.1")
	}
	return nil
}

func (d *driver) hasCert() bool { return d.ClientCertFile != "" || d.ClientCertData != nil }

func (d *driver) hasKey() bool { return d.ClientKeyFile != "" || d.ClientKeyData != nil }

func (d *driver) hasTLS() bool {
	return d.hasCert() || d.hasKey() || d.CAFile != "" || d.CAData != nil
}

// dialer reaches the broker.
func (d *driver) dialer(insecure bool, log *slog.Logger) (*transportgrpc.Dialer, error) {
	o := transportgrpc.Options{Target: d.URL, Insecure: insecure, Log: log}
	if t := d.ServerHealthinessTimeout; t != nil {
		o.HealthTimeout = time.Duration(*t)
	}
	if !insecure {
		var err error
		if o.Credentials, err = d.credentials(log); err != nil {
			return nil, err
		}
	}
	return transportgrpc.NewDialer(o)
}

func (d *driver) credentials(log *slog.Logger) (credentials.TransportCredentials, error) {
	if d.CAData == nil && d.ClientCertData == nil && d.ClientKeyData == nil {
		files := identity.Files{CA: d.CAFile, Cert: d.ClientCertFile, Key: d.ClientKeyFile}
		return files.Client("", func(err error) { log.Error("tls files", "error", err) })
	}
	ca, err1 := content(d.CAData, d.CAFile)
	cert, err2 := content(d.ClientCertData, d.ClientCertFile)
	key, err3 := content(d.ClientKeyData, d.ClientKeyFile)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("client certificate and key: %w", err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	if ca != nil {
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(ca) {
			return nil, errors.New("caData, or the file in caFile, holds no PEM certificate")
		}
	}
	return credentials.NewTLS(c), nil
}

// content is data, or what the file holds; nil if there is neither.
func content(data []byte, file string) ([]byte, error) {
	if data != nil || file == "" {
		return data, nil
	}
	return os.ReadFile(file)
}
