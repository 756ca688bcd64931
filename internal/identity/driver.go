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

// Driver is the TLS part of the configuration files of Open Cluster Management's drivers, for gRPC and for
// MQTT. It has additional keys of Hawser for a proxy. The drivers' types embed it. Data is PEM and takes
// precedence over the file of the same name.
type Driver struct {
	// CAFile is a PEM file of the CAs that sign the broker's certificate. Without it, the system's CAs are used.
	CAFile string `json:"caFile"`
	// CAData is the content of such a file. It takes precedence over caFile.
	CAData []byte `json:"caData"`
	// ClientCertFile is a PEM file of the client certificate. It is read again when it changes.
	ClientCertFile string `json:"clientCertFile"`
	// ClientCertData is the content of such a file. It takes precedence over clientCertFile.
	ClientCertData []byte `json:"clientCertData"`
	// ClientKeyFile is a PEM file of its private key.
	ClientKeyFile string `json:"clientKeyFile"`
	// ClientKeyData is the content of such a file. It takes precedence over clientKeyFile.
	ClientKeyData []byte `json:"clientKeyData"`
	// Token is a bearer token, for clients without a certificate. It is trimmed. It is sent without TLS only to
	// this machine.
	Token string `json:"token"`
	// TokenFile is a file with a bearer token, read again for each connection. Token takes precedence over it.
	TokenFile string `json:"tokenFile"`
	// ProxyURL is the HTTP proxy to the broker, as http://user:password@proxy.example:3128, or none. Without it
	// HTTPS_PROXY and NO_PROXY of the environment are used.
	ProxyURL string `json:"proxy"`
	// ProxyCAFile is a PEM file of the CAs that sign the certificate of an https:// proxy. Without it, the system's
	// CAs are used.
	ProxyCAFile string `json:"proxyCAFile"`
}

// OverrideProxy applies flags about the proxy; an empty one changes nothing.
func (d *Driver) OverrideProxy(url, caFile string) {
	d.ProxyURL, d.ProxyCAFile = cmp.Or(url, d.ProxyURL), cmp.Or(caFile, d.ProxyCAFile)
}

// HasCert reports whether a client certificate is configured.
func (d *Driver) HasCert() bool { return d.ClientCertFile != "" || d.ClientCertData != nil }

// HasKey reports whether a client key is configured.
func (d *Driver) HasKey() bool { return d.ClientKeyFile != "" || d.ClientKeyData != nil }

// HasToken reports whether a bearer token is configured.
func (d *Driver) HasToken() bool { return strings.TrimSpace(d.Token) != "" || d.TokenFile != "" }

// maxToken is the maximum size of a token in bytes; those of service accounts have about 1 KiB.
const maxToken = 16 << 10

// Bearer returns the current bearer token from data or file, "" if none is configured.
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

// HasTLS reports whether anything about TLS is configured.
func (d *Driver) HasTLS() bool {
	return d.HasCert() || d.HasKey() || d.CAFile != "" || d.CAData != nil
}

// Files returns the configured files. ok is false if some of it is data, so that the files alone are
// incomplete.
func (d *Driver) Files() (f Files, ok bool) {
	ok = d.CAData == nil && d.ClientCertData == nil && d.ClientKeyData == nil
	return Files{CA: d.CAFile, Cert: d.ClientCertFile, Key: d.ClientKeyFile}, ok
}

// CA returns the CAs of the broker, nil for the system's CAs.
func (d *Driver) CA() ([]byte, error) { return content(d.CAData, d.CAFile) }

// Config returns the TLS configuration from the current files and data.
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

// content returns data, or else the content of the file; nil without both.
func content(data []byte, file string) ([]byte, error) {
	if data != nil || file == "" {
		return data, nil
	}
	return os.ReadFile(file)
}

// Client is [Files.Client] for files and data.
func (d *Driver) Client(serverName string, onError func(error)) (credentials.TransportCredentials, error) {
	if f, ok := d.Files(); ok {
		return f.Client(serverName, onError)
	}
	last, err := d.Config()
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex // guards last
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
