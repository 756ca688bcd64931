package identity

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"google.golang.org/grpc/credentials"
)

// Driver is what the configuration files of Open Cluster Management's drivers, for gRPC and
// for MQTT alike, say about TLS, and with keys of our own about a proxy; their types embed it.
// Data is PEM and wins over the file of the same name.
type Driver struct {
	// CAFile is a PEM file of the CAs that sign the broker's certificate. Without any, those
	// of the system count.
	CAFile string `json:"caFile"`
	// CAData is the same in the file itself, and wins over caFile.
	CAData []byte `json:"caData"`
	// ClientCertFile is a PEM file of the client certificate. It is read again when it changes.
	ClientCertFile string `json:"clientCertFile"`
	// ClientCertData is the same in the file itself, and wins over clientCertFile.
	ClientCertData []byte `json:"clientCertData"`
	// ClientKeyFile is a PEM file of its private key.
	ClientKeyFile string `json:"clientKeyFile"`
	// ClientKeyData is the same in the file itself, and wins over clientKeyFile.
	ClientKeyData []byte `json:"clientKeyData"`
	// Token is a bearer token, for who has no certificate yet. It is trimmed, and never sent in plaintext
	// but to this machine.
	Token string `json:"token"`
	// TokenFile is a file that holds one, read again for each connection. Token wins over it.
	TokenFile string `json:"tokenFile"`
	// ProxyURL is the HTTP proxy through which the broker is reached, as http://user:password@proxy.example:3128,
	// or none. Without it HTTPS_PROXY and NO_PROXY of the environment count.
	ProxyURL string `json:"proxy"`
	// ProxyCAFile is a PEM file of the CAs that sign the certificate of a proxy with https://. Without it, those
	// of the system count.
	ProxyCAFile string `json:"proxyCAFile"`
}

// OverrideProxy puts what flags say about the proxy, if anything, over what the file says.
func (d *Driver) OverrideProxy(url, caFile string) {
	d.ProxyURL, d.ProxyCAFile = cmp.Or(url, d.ProxyURL), cmp.Or(caFile, d.ProxyCAFile)
}

// HasCert reports whether there is a client certificate.
func (d *Driver) HasCert() bool { return d.ClientCertFile != "" || d.ClientCertData != nil }

// HasKey reports whether there is the key of one.
func (d *Driver) HasKey() bool { return d.ClientKeyFile != "" || d.ClientKeyData != nil }

// HasToken reports whether there is a bearer token.
func (d *Driver) HasToken() bool { return strings.TrimSpace(d.Token) != "" || d.TokenFile != "" }

// maxToken bounds a token; those of service accounts have about 1 KiB.
const maxToken = 16 << 10

// Bearer returns the bearer token as data and file are now, "" where none is named.
func (d *Driver) Bearer() (string, error) {
	text := strings.TrimSpace(d.Token)
	switch {
	case text != "":
	case d.TokenFile == "":
		return "", nil
	default:
		b, err := os.ReadFile(d.TokenFile)
		if err != nil {
			return "", fmt.Errorf("tokenFile: %w", err)
		}
		text = strings.TrimSpace(string(b))
	}
	switch {
	case text == "":
		return "", fmt.Errorf("tokenFile: %s is empty", d.TokenFile)
	case len(text) > maxToken, strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", fmt.Errorf("token or tokenFile is no bearer token: it has %d bytes, of which some are spaces or no ASCII, or more than %d", len(text), maxToken)
	}
	return text, nil
}

// HasTLS reports whether anything is said about TLS.
func (d *Driver) HasTLS() bool {
	return d.HasCert() || d.HasKey() || d.CAFile != "" || d.CAData != nil
}

// Files returns the files that are named; ok is false where some of it is data, so that the
// files alone are not all of it.
func (d *Driver) Files() (f Files, ok bool) {
	ok = d.CAData == nil && d.ClientCertData == nil && d.ClientKeyData == nil
	return Files{CA: d.CAFile, Cert: d.ClientCertFile, Key: d.ClientKeyFile}, ok
}

// CA returns the CAs of the broker, nil for those of the system.
func (d *Driver) CA() ([]byte, error) { return content(d.CAData, d.CAFile) }

// Config returns the TLS configuration as files and data are now.
func (d *Driver) Config() (*tls.Config, error) {
	ca, err1 := d.CA()
	cert, err2 := content(d.ClientCertData, d.ClientCertFile)
	key, err3 := content(d.ClientKeyData, d.ClientKeyFile)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if cert != nil {
		pair, err := ReadPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("client certificate and key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	if ca != nil {
		var err error
		if c.RootCAs, err = ReadPool(ca); err != nil {
			return nil, fmt.Errorf("caData, or the file in caFile: %w", err)
		}
	}
	return c, nil
}

// content is data, or what the file holds; nil if there is neither.
func content(data []byte, file string) ([]byte, error) {
	if data != nil || file == "" {
		return data, nil
	}
	return os.ReadFile(file)
}

// Client is [Files.Client] for what is named and for what is data.
func (d *Driver) Client(serverName string, onError func(error)) (credentials.TransportCredentials, error) {
	if f, ok := d.Files(); ok {
		return f.Client(serverName, onError)
	}
	last, err := d.Config()
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex // for last
	return &reloading{serverName: serverName, config: func(name string) *tls.Config {
		mu.Lock()
		defer mu.Unlock()
		if c, err := d.Config(); err == nil { // files beside the data may have changed
			last = c
		} else {
			onError(fmt.Errorf("tls files changed and cannot be used, the previous ones stay in use: %w", err))
		}
		c := last.Clone()
		c.ServerName = name
		return c
	}}, nil
}
