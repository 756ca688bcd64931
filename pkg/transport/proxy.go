package transport

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
)

// NoProxy as the URL of a [Proxy] disables proxies.
const NoProxy = "none"

// Proxy configures the HTTP proxy to a broker.
type Proxy struct {
	// URL is the URL of the proxy, as http://user:password@proxy.example:3128; https means TLS to the proxy. The
	// proxy gets a CONNECT for any protocol. Empty means HTTPS_PROXY and NO_PROXY of the environment; NoProxy means
	// none.
	URL string
	// CAFile is a PEM file with the CAs of an https proxy, also of one from the environment. It is read at each
	// Dial. Empty means the CAs of the system.
	CAFile string
}

// Or returns p with its empty fields taken from other.
func (p Proxy) Or(other Proxy) Proxy {
	return Proxy{URL: cmp.Or(p.URL, other.URL), CAFile: cmp.Or(p.CAFile, other.CAFile)}
}

// errNoProxyURL never shows the input, because it may contain a password.
var errNoProxyURL = errors.New("this is not the URL of a proxy: use http://proxy.example:3128, http://USER:PASSWORD@proxy.example:3128, https:// for a proxy that speaks TLS, or " + NoProxy)

// Server returns the URL of the proxy, nil if there is none or the environment determines it.
func (p Proxy) Server() (*url.URL, error) {
	if p.URL == "" || p.URL == NoProxy {
		return nil, nil //nolint:nilnil // there is none, which is no error
	}
	u, err := url.Parse(p.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("proxy: %w", errNoProxyURL)
	}
	return u, nil
}
