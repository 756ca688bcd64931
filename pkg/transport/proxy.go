package transport

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
)

// NoProxy as the URL of a [Proxy] means that none is used.
const NoProxy = "none"

// Proxy says through which HTTP proxy a broker is reached.
type Proxy struct {
	// URL is that of the proxy, as http://user:password@proxy.example:3128, with https for one
	// that is reached by TLS. It is asked by CONNECT, whatever is spoken behind it. Empty means
	// what HTTPS_PROXY and NO_PROXY of the environment say, NoProxy none.
	URL string
	// CAFile has the CAs, PEM, that sign the certificate of a proxy with https, be it of the
	// environment; it is read at every Dial. Empty means those of the system.
	CAFile string
}

// Or returns p, and where p says nothing what other says.
func (p Proxy) Or(other Proxy) Proxy {
	return Proxy{URL: cmp.Or(p.URL, other.URL), CAFile: cmp.Or(p.CAFile, other.CAFile)}
}

// errNoProxyURL never shows what was given: it may hold a password.
var errNoProxyURL = errors.New("this is not the URL of a proxy: use http://proxy.example:3128, http://USER:PASSWORD@proxy.example:3128, https:// for a proxy that speaks TLS, or " + NoProxy)

// Server returns the URL of the proxy, nil if there is none or if the environment says it.
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
