package identity

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// Files names the PEM files of one side of a connection. Cert and Key belong together: a client may leave both
// empty, a server needs them.
type Files struct {
	CA, Cert, Key string
	// AgentCA and HubCA are further CAs of a server. They may sign for agents only. HubCA are the CAs that a hub
	// reports; that file may appear and disappear, see [KeepHubCA].
	AgentCA, HubCA string
}

// stamps are the stamps of CA, Cert, Key, AgentCA and HubCA.
type stamps [5]fileStamp

// checkEvery is the minimum interval of checks for changed files, for any number of handshakes.
const checkEvery = 500 * time.Millisecond

// material is the content of the files at the last read.
type material struct {
	Authorities
	cert *tls.Certificate
	// generation identifies the files of the CAs, see [generationOf].
	generation [sha256.Size]byte
	// tickets is the key of the tickets that a server issues.
	tickets [32]byte
	// sessions are the sessions that a client may resume. They end with its certificate and with its CAs.
	sessions tls.ClientSessionCache
}

// loader reads files again when they change. If a file becomes unusable, the last good material stays in use.
// The error is passed to onError, once as long as it stays the same.
type loader struct {
	files   Files
	onError func(error)
	now     func() time.Time

	mu      sync.Mutex
	checked time.Time
	stamp   stamps
	current material
	err     error // why the current files cannot be used
}

type fileStamp struct {
	modified time.Time
	size     int64
}

func newLoader(f Files, onError func(error)) (*loader, error) {
	l := &loader{files: f, onError: onError, now: time.Now}
	stamp, err := f.stamps()
	if err != nil {
		return nil, err
	}
	if l.current, err = f.read(); err != nil {
		return nil, err
	}
	l.stamp, l.checked = stamp, l.now()
	return l, nil
}

func (l *loader) get() material {
	m, _ := l.look()
	return m
}

// look returns the material in use, and the error of the current files if they differ.
func (l *loader) look() (material, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now().Sub(l.checked) < checkEvery {
		return l.current, l.err
	}
	l.checked = l.now()
	before := l.err
	l.err = l.reload()
	if l.err != nil && (before == nil || before.Error() != l.err.Error()) {
		l.onError(l.err)
	}
	return l.current, l.err
}

// reload reads the files if they have changed.
func (l *loader) reload() error {
	stamp, err := l.files.stamps()
	if err == nil && stamp == l.stamp {
		return nil
	}
	var m material
	if err == nil {
		m, err = l.files.read()
	}
	switch {
	case err == nil:
		l.current, l.stamp = m, stamp
		return nil
	case l.stamp == (stamps{}):
		return fmt.Errorf("tls files cannot be used: %w", err)
	}
	return fmt.Errorf("tls files changed and cannot be used, the previous ones stay in use: %w", err)
}

func (f Files) stamps() (s stamps, err error) {
	for i, name := range []string{f.CA, f.Cert, f.Key, f.AgentCA, f.HubCA} {
		if name == "" {
			continue
		}
		st, err := os.Stat(name)
		if name == f.HubCA && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return s, err
		}
		s[i] = fileStamp{modified: st.ModTime(), size: st.Size()}
	}
	return s, nil
}

func (f Files) read() (m material, err error) {
	if (f.Cert == "") != (f.Key == "") {
		return m, errors.New("tls: a certificate needs its key and a key its certificate: set both files or none")
	}
	if err := f.readAuthorities(&m); err != nil {
		return m, err
	}
	if f.Cert == "" {
		return m, nil
	}
	cert, err1 := os.ReadFile(f.Cert)
	key, err2 := os.ReadFile(f.Key)
	if err := errors.Join(err1, err2); err != nil {
		return m, err
	}
	c, err := ReadPair(cert, key)
	if err != nil {
		return m, fmt.Errorf("tls: %s and %s: %w", f.Cert, f.Key, err)
	}
	m.cert, m.sessions = &c, newSessions()
	m.tickets, err = ticketKey(&c)
	return m, err
}

// sessionsKept is the number of servers to which a client keeps a session that it may resume.
const sessionsKept = 4

// sessions keeps TLS sessions by the name of the server. For a server without a session it returns the latest one
// of any server: replicas with one certificate accept the tickets of each other. The library offers it only to a
// server whose name is in the certificate of that session.
type sessions struct{ tls.ClientSessionCache }

func newSessions() sessions { return sessions{tls.NewLRUClientSessionCache(sessionsKept + 1)} }

// anyServer is the key of the latest session.
const anyServer = ""

// Get implements tls.ClientSessionCache.
func (s sessions) Get(server string) (*tls.ClientSessionState, bool) {
	if session, ok := s.ClientSessionCache.Get(server); ok {
		return session, ok
	}
	return s.ClientSessionCache.Get(anyServer)
}

// Put implements tls.ClientSessionCache.
func (s sessions) Put(server string, session *tls.ClientSessionState) {
	s.ClientSessionCache.Put(server, session)
	s.ClientSessionCache.Put(anyServer, session)
}

// readAuthorities reads the CAs. Those in AgentCA, and in HubCA if it exists, are only in all.
func (f Files) readAuthorities(m *material) error {
	var contents [3][]byte
	for i, file := range []struct{ name, hint string }{
		{f.CA, ""}, {f.AgentCA, ": put the CA there that signs for clusters"}, {f.HubCA, ": remove it; it is written again when hub-source connects"},
	} {
		if file.name == "" {
			continue
		}
		b, err := os.ReadFile(file.name)
		if file.name == f.HubCA && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if contents[i] = b; i == 0 {
			m.own, err = ReadPool(b)
			m.all = m.own
		} else {
			if m.all == m.own {
				m.all = m.own.Clone()
			}
			err = addTo(m.all, b)
		}
		if err != nil {
			return fmt.Errorf("tls: %s: %w%s", file.name, err, file.hint)
		}
	}
	m.generation = generationOf(contents[:]...)
	return nil
}

// Client returns the credentials for connections to a server signed by CA (the system's CAs if CA is empty).
// serverName overrides the name to verify; empty means the dialled host.
func (f Files) Client(serverName string, onError func(error)) (credentials.TransportCredentials, error) {
	l, err := newLoader(f, onError)
	if err != nil {
		return nil, err
	}
	return &reloading{config: func(name string) *tls.Config { return l.get().client(name) }, serverName: serverName}, nil
}

// reloading builds a new TLS configuration for every handshake.
type reloading struct {
	config     func(serverName string) *tls.Config
	serverName string
}

func (r *reloading) inner() credentials.TransportCredentials {
	return credentials.NewTLS(r.config(r.serverName))
}

// client returns the configuration of the client's side.
func (m material) client(serverName string) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: m.own, ServerName: serverName}
	if m.cert != nil {
		c.Certificates, c.ClientSessionCache = []tls.Certificate{*m.cert}, m.sessions
	}
	return c
}

// TLS is Client for connections other than gRPC's, whose credentials negotiate HTTP/2. The returned function
// makes the configuration of the next connection.
func (f Files) TLS(onError func(error)) (func() *tls.Config, error) {
	l, err := newLoader(f, onError)
	if err != nil {
		return nil, err
	}
	return func() *tls.Config { return l.get().client("") }, nil
}

func (r *reloading) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return r.inner().ClientHandshake(ctx, authority, conn)
}

func (r *reloading) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("tls: client credentials cannot serve")
}

func (r *reloading) Info() credentials.ProtocolInfo { return r.inner().Info() }

func (r *reloading) Clone() credentials.TransportCredentials {
	return &reloading{config: r.config, serverName: r.serverName}
}

func (r *reloading) OverrideServerName(name string) error {
	r.serverName = name
	return nil
}
