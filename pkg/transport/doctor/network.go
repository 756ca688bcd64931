package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/internal/dialing"
)

// files reads the client's certificate and CAs.
func (k *run) files(context.Context) (string, error) {
	if k.Insecure {
		return "none: plaintext", nil
	}
	m, err := readFiles(k.Identity, k.Transport.mutual)
	if err != nil {
		return "", problem(err, "check the path, and that this user may read the file", "%v", err)
	}
	k.seen.files = m
	own := "no certificate is named"
	if m.own != nil {
		own = k.ownName() + " is " + describe(m.own)
	}
	return fmt.Sprintf("%s; trusted are the CAs of %s", own, k.trusted()), nil
}

// name resolves the host name.
func (k *run) name(ctx context.Context) (string, error) {
	var err error
	if k.host, k.port, err = net.SplitHostPort(k.Transport.addr); err != nil || k.host == "" || k.port == "" {
		return "", problem(err, k.Transport.form, "%q is not host:port", k.Transport.broker)
	}
	k.Broker = k.Transport.addr
	if k.through.url, err = dialing.ProxyFor(k.settings(), k.Broker); err != nil {
		return "", problem(err, "correct the setting of the proxy", "%v", err)
	}
	if net.ParseIP(k.host) != nil {
		k.addrs = []string{k.host}
		return k.host + " is an address", nil
	}
	k.addrs, err = k.lookup(ctx, k.host)
	switch {
	case err == nil:
		return k.host + " is " + strings.Join(k.addrs, ", "), nil
	case k.through.url != nil: // the proxy resolves names that this machine cannot
		return k.host + " is not known to this machine; the proxy has to know it", nil
	}
	if unknown, ok := errors.AsType[*net.DNSError](err); ok && unknown.IsNotFound {
		return "", problem(err, fmt.Sprintf("check the name of the broker; if it is right, ask the network team for a DNS record of %s that this machine can see", k.host),
			"no DNS server that this machine asks knows %s", k.host)
	}
	return "", problem(err, "ask the network team why DNS does not answer here; an IP address needs no DNS: use it as the broker, and give the name with --server-name",
		"the DNS servers of this machine gave no answer about %s: %v", k.host, err)
}

// proxy is the HTTP proxy by the settings of this process; url is nil if there is none.
type proxy struct{ url *url.URL }

func (k *run) settings() transport.Proxy {
	return transport.Proxy{URL: k.Identity.ProxyURL, CAFile: k.Identity.ProxyCAFile}
}

// proxy opens a connection to the broker through the proxy, if there is one.
func (k *run) proxy(ctx context.Context) (string, error) {
	if k.through.url == nil {
		return "none for this address", nil
	}
	conn, err := dialing.Dial(k.settings())(ctx, "tcp", k.Broker)
	if err == nil {
		k.raw = conn
		return k.through.url.Redacted() + " lets us through", nil
	}
	var (
		failed  *dialing.ProxyError
		refused *dialing.RefusedError
	)
	if !errors.As(err, &failed) {
		return "", err
	}
	name := k.through.url.Redacted()
	switch {
	case !errors.As(err, &refused):
		return "", problem(err, failed.Hint(), "the proxy %s cannot be used: %v", name, failed.Err)
	case refused.Code == http.StatusProxyAuthRequired:
		return "", problem(err, failed.Hint(), "the proxy %s wants another user name and password", name)
	}
	return "", problem(err, failed.Hint(), "the proxy %s refuses a connection to %s: %s", name, k.Broker, refused.Status)
}

// tcp opens the TCP connection.
func (k *run) tcp(ctx context.Context) (string, error) {
	if k.raw != nil {
		return "by the proxy", nil
	}
	began := k.Now()
	conn, err := dialing.Dial(k.settings())(ctx, "tcp", net.JoinHostPort(k.host, k.port))
	if err == nil {
		k.raw = conn
		return fmt.Sprintf("%s answered in %s", conn.RemoteAddr(), k.Now().Sub(began).Round(100*time.Microsecond)), nil
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "", problem(err, "check the port, and that the broker runs and listens there; a firewall that rejects looks the same",
			"no program listens at %s (%s)", k.Broker, strings.Join(k.addrs, ", "))
	case errors.Is(err, context.DeadlineExceeded):
		return "", problem(err, fmt.Sprintf("ask the network team to allow TCP from this machine to %s; something on the way drops it", k.where()),
			"%s did not answer within %s", k.where(), k.Timeout)
	}
	return "", problem(err, fmt.Sprintf("ask the network team for a route from this machine to %s", k.where()), "no connection to %s: %v", k.Broker, err)
}

func (k *run) where() string {
	return fmt.Sprintf("%s port %s", strings.Join(k.addrs, " or "), k.port)
}
