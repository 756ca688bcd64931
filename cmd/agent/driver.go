package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
)

// The drivers.
const (
	driverGRPC = "grpc"
	driverMQTT = "mqtt"
)

// driver is the configuration file of OCM's grpc driver.
type driver struct {
	// URL is host:port of the broker; required. Several brokers of one hub have commas between them.
	URL string `json:"url"`

	// Files are read again when they change.
	identity.Driver

	// KeepAliveConfig is ignored, with a log message: the agent manages its connection itself.
	KeepAliveConfig json.RawMessage `json:"keepAliveConfig"`
	// ServerHealthinessTimeout is the silence on the stream of works after which the broker counts as gone; the broker
	// sends a heartbeat every 10 s. More than 0.
	ServerHealthinessTimeout *cmdline.Duration `json:"serverHealthinessTimeout"`

	// unknown are the unknown keys, which OCM ignores.
	unknown []string
}

// readDriver reads and checks the file that a flag names. insecure allows plaintext.
func readDriver(flag, path string, insecure bool) (*driver, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	d, err := parseDriver(b)
	if err == nil {
		err = d.validate(insecure)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", flag, path, err)
	}
	return d, nil
}

func parseDriver(b []byte) (*driver, error) {
	d := &driver{}
	if err := cmdline.DecodeLenient(b, d); err != nil {
		return nil, err
	}
	var err error
	d.unknown, err = cmdline.UnknownKeys(b, d)
	return d, err
}

// validate returns all problems of the settings, each with its remedy.
func (d *driver) validate(insecure bool) error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	brokers, err := transport.Addresses(d.URL)
	if err != nil {
		wrong("url %w", err)
	}
	if t := d.ServerHealthinessTimeout; t != nil && *t <= 0 {
		wrong("serverHealthinessTimeout %s: use a positive duration, as 30s", t)
	}
	if _, err := d.proxy().Server(); err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, d.validateTLS(insecure, brokers))
	return errors.Join(errs...)
}

// validateTLS requires a certificate, a token, or plaintext to brokers at loopback addresses. brokers is nil if url is
// invalid.
func (d *driver) validateTLS(insecure bool, brokers []string) error {
	switch {
	case insecure && d.HasTLS():
		return errors.New("--insecure and TLS settings exclude each other: drop one of them")
	case insecure && !cmdline.LoopbackOnly(brokers):
		return fmt.Errorf("--insecure to %s: plaintext is allowed to a loopback address only, as 127.0.0.1:8090", d.URL)
	case d.HasCert() != d.HasKey(), !insecure && !d.HasCert() && !d.HasToken():
		return errors.New("clientCertFile and clientKeyFile (or clientCertData and clientKeyData) are needed: the broker identifies the cluster by its certificate. To request to join, give token or tokenFile. To try things out on one machine, use --insecure with a broker on 127.0.0.1")
	}
	return nil
}

func (d *driver) proxy() transport.Proxy {
	return transport.Proxy{URL: d.ProxyURL, CAFile: d.ProxyCAFile}
}

// dialer returns the dialer of the broker.
func (d *driver) dialer(insecure bool, log *slog.Logger) (*transportgrpc.Dialer, error) {
	o := transportgrpc.Options{Target: d.URL, Insecure: insecure, Proxy: d.proxy(), Token: d.Bearer, Log: log}
	if t := d.ServerHealthinessTimeout; t != nil {
		o.HealthTimeout = time.Duration(*t)
	}
	if !insecure {
		var err error
		if o.Credentials, err = d.Client("", func(err error) { log.Error("tls files", "error", err) }); err != nil {
			return nil, err
		}
	}
	return transportgrpc.NewDialer(o)
}
