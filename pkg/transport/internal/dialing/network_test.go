package dialing

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/transport"
)

// httpsProxy is a proxy behind TLS. It answers CONNECT with status and then echoes the received bytes. It
// returns its port, and the file with its CA.
func httpsProxy(t *testing.T, status string) (port, ca string) {
	t.Helper()
	authority, err := pki.NewAuthority("the proxy's CA", pki.Starting(time.Now(), time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue(pki.Request{Role: pki.Broker, Name: "proxy", Hosts: []string{"127.0.0.1"}, Valid: pki.Starting(time.Now(), time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := pair.TLS()
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { // ends with the listener
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			answer(c, status)
		}
	}()
	t.Cleanup(func() {
		_ = l.Close() // ends Accept
		<-done
	})
	ca = filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, authority.CertificatePEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	_, port, err = net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port, ca
}

func answer(c net.Conn, status string) {
	defer func() { _ = c.Close() }()            // the client may be gone
	_ = c.SetDeadline(time.Now().Add(patience)) // c is open
	r := bufio.NewReader(c)
	if _, err := http.ReadRequest(r); err != nil {
		return
	}
	if _, err := io.WriteString(c, "HTTP/1.1 "+status+"\r\n\r\n"); err != nil {
		return
	}
	_, _ = io.Copy(c, r) // until the client leaves
}

func TestDial_ProxyWithACAOfItsOwn(t *testing.T) {
	port, ca := httpsProxy(t, "200 OK")
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1") // the configured proxy has priority
	conn, err := Dial(transport.Proxy{URL: "https://u:p@127.0.0.1:" + port, CAFile: ca})(t.Context(), "tcp", "127.0.0.7:8090")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // all bytes were read
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, len("hello"))
	if _, err := io.ReadFull(conn, b); err != nil || string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestDial_NoneIsNoProxy(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // no other code uses it
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	t.Setenv("NO_PROXY", "")
	lookup := answering(map[string][]net.IP{"broker.example.": {net.IPv4(127, 0, 0, 1)}})
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := dial(t.Context(), lookup, transport.Proxy{URL: transport.NoProxy}, "tcp", "broker.example:"+port)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
}

// TestExplain_Proxy simulates failures of a proxy. The error names the proxy and the remedy, and contains no
// password.
func TestExplain_Proxy(t *testing.T) {
	good, ca := httpsProxy(t, "200 OK")
	forbids, forbidsCA := httpsProxy(t, "403 Forbidden")
	server, serverCA := httpsProxy(t, "407 Proxy Authentication Required")
	lost, lostCA := httpsProxy(t, "503 Service Unavailable")
	cleartext, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { // ends with the listener
		defer close(done)
		if c, err := cleartext.Accept(); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n") // the client may be gone
			_, _ = io.Copy(io.Discard, c)                                // until the client is gone
			_ = c.Close()                                                // both sides are done
		}
	}()
	defer func() {
		_ = cleartext.Close() // ends Accept
		<-done
	}()
	_, cleartextPort, err := net.SplitHostPort(cleartext.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		port, ca, what, hint string
	}{
		"forbids":        {forbids, forbidsCA, "403 Forbidden", "ask the network team to allow CONNECT to broker.example:8090 through 127.0.0.1:" + forbids},
		"wants password": {server, serverCA, "407 Proxy Authentication Required", "https://USER:PASSWORD@127.0.0.1:" + server},
		"has no way":     {lost, lostCA, "503 Service Unavailable", "why 127.0.0.1:" + lost + " cannot connect to broker.example:8090"},
		"of another CA":  {good, forbidsCA, "unknown authority", `not of the broker. Give the CA that signed it (--proxy-ca-file, key proxyCAFile; "CN=the proxy's CA")`},
		"has no TLS":     {cleartextPort, ca, "does not look like a TLS handshake", "configure it as http://127.0.0.1:" + cleartextPort},
		"is not there":   {"1", ca, "connection refused", "NO_PROXY=broker.example"},
		"no such CA":     {good, "none.crt", "CA of the proxy: open none.crt", ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Dial(transport.Proxy{URL: "https://u:secret@127.0.0.1:" + c.port, CAFile: c.ca})(t.Context(), "tcp", "broker.example:8090")
			e := &transport.Error{Code: transport.CodeUnavailable, Err: err}
			if !Explain(e, err) || !strings.Contains(err.Error(), c.what) || !strings.Contains(e.Hint, c.hint) {
				t.Errorf("%v\nhint: %s\nwant %q and %q", err, e.Hint, c.what, c.hint)
			}
			if e.Code != transport.CodeUnavailable {
				t.Errorf("code %v: it is not about the client's certificate", e.Code)
			}
			if strings.Contains(err.Error()+e.Hint, "secret") {
				t.Errorf("it shows the password: %v, %s", err, e.Hint)
			}
		})
	}
}

func TestProxyFor_WrongSettingsShowNoPassword(t *testing.T) {
	for _, url := range []string{"http://u:secret@proxy%zz:1", "socks5://u:secret@proxy:1", "u:secret@proxy:3128", "http://u:secret@", "http://u:secret@proxy/path"} {
		if _, err := ProxyFor(transport.Proxy{URL: url}, "broker.example:8090"); err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "http://proxy.example:3128") {
			t.Errorf("%s: %v", url, err)
		}
	}
	t.Setenv("NO_PROXY", "")
	for _, url := range []string{"http://u:secret@proxy%zz:1", "socks5://u:secret@proxy:1", "u:secret@:3128"} {
		t.Setenv("HTTPS_PROXY", url)
		if _, err := ProxyFor(transport.Proxy{}, "broker.example:8090"); err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "HTTPS_PROXY") {
			t.Errorf("%s in the environment: %v", url, err)
		}
	}
}

// answering returns a dialer whose DNS server has these addresses, by name.
func answering(names map[string][]net.IP) *net.Dialer {
	return &net.Dialer{Resolver: &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go serveDNS(server, names) // ends with the client
		return client, nil
	}}}
}

// serveDNS answers in the form of DNS over TCP: the length, and then the message.
func serveDNS(c net.Conn, names map[string][]net.IP) {
	defer func() { _ = c.Close() }() // the client may have closed it
	for {
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		request := make([]byte, int(size[0])<<8|int(size[1]))
		if _, err := io.ReadFull(c, request); err != nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(request); err != nil {
			return
		}
		q := m.Questions[0]
		m.Response, m.Additionals = true, nil
		for _, ip := range names[q.Name.String()] {
			h := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}
			switch v4 := ip.To4(); {
			case v4 != nil && q.Type == dnsmessage.TypeA:
				m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: [4]byte(v4)}})
			case v4 == nil && q.Type == dnsmessage.TypeAAAA:
				m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AAAAResource{AAAA: [16]byte(ip)}})
			}
		}
		reported, err := m.Pack()
		if err != nil {
			return
		}
		if _, err := c.Write(append([]byte{byte(len(reported) >> 8), byte(len(reported))}, reported...)); err != nil {
			return
		}
	}
}

// TestDial_AllAddressesOfAName: no program listens at the first addresses of either family. Then the name
// moves, and the next Dial uses the new address.
func TestDial_AllAddressesOfAName(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "")
	l, err := net.Listen("tcp", "127.0.0.31:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // no other code uses it
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	next, err := net.Listen("tcp", "127.0.0.32:"+port)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = next.Close() }() // no other code uses it
	names := map[string][]net.IP{"broker.example.": {net.IPv6loopback, net.IPv4(127, 0, 0, 29), net.IPv4(127, 0, 0, 30), net.IPv4(127, 0, 0, 31)}}
	to := func() (string, error) {
		conn, err := dial(t.Context(), answering(names), transport.Proxy{}, "tcp", "broker.example:"+port)
		if err != nil {
			return "", err
		}
		return conn.RemoteAddr().String(), conn.Close()
	}
	if addr, err := to(); err != nil || addr != "127.0.0.31:"+port {
		t.Errorf("connected to %s, %v", addr, err)
	}
	names["broker.example."] = []net.IP{net.IPv4(127, 0, 0, 32)}
	if addr, err := to(); err != nil || addr != "127.0.0.32:"+port {
		t.Errorf("after the name has moved: connected to %s, %v", addr, err)
	}
}

// The error about a rejected broker certificate names its issuer: that may be a proxy that inspects TLS.
func TestExplain_NamesTheSigner(t *testing.T) {
	port, _ := httpsProxy(t, "200 OK")
	_, err := tls.Dial("tcp", "127.0.0.1:"+port, &tls.Config{MinVersion: tls.VersionTLS12})
	e := &transport.Error{}
	if !Explain(e, err) || !strings.Contains(e.Hint, `signed by "CN=the proxy's CA"`) || !strings.Contains(e.Hint, "inspects TLS") {
		t.Errorf("%v: %s", err, e.Hint)
	}
	var bad *tls.CertificateVerificationError
	if !errors.As(err, &bad) {
		t.Errorf("%T", err)
	}
}
