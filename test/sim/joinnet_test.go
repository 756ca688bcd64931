package sim

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"sync"
	"time"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/earliest"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/transport"
	transportmem "github.com/hawser-io/hawser/pkg/transport/mem"
)

// joinNet is the network between the clients and the broker, and the broker's listener. It authenticates
// clients by certificates, as the real listener does, or by bootstrap tokens.
type joinNet struct {
	j     *join
	conns []*joinConn // guarded by the world's lock
	late  sync.WaitGroup

	// Faults, guarded by the world's lock.
	slow                         time.Duration // the longest delay
	losing, doubling, unroutable int           // numbers of lost answers, duplicate publishes, and late publishes
	cut                          map[string]bool
}

// netDelay is the longest delay of a healthy network.
const netDelay = 10 * time.Millisecond

// joinConn is one connection.
type joinConn struct {
	transport.Conn
	owner  string // "hub-source", or the name of an agent
	dialer *transportmem.Dialer
}

func (n *joinNet) heal() {
	n.j.mu.Lock()
	defer n.j.mu.Unlock()
	n.slow, n.losing, n.doubling, n.unroutable, n.cut = netDelay, 0, 0, 0, nil
}

// delay waits for the delay of one message.
func (n *joinNet) delay(ctx context.Context) {
	n.j.mu.Lock()
	longest := max(n.slow, netDelay)
	d := time.Duration(n.j.draw.Int64N(int64(longest)))
	n.j.mu.Unlock()
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// joinDialer dials for one client.
type joinDialer struct {
	net   *joinNet
	owner string
	// identity returns the identity that the client can prove, and when that proof expires.
	identity func() (peer transport.Peer, ends time.Time, err error)
}

// Dial implements [transport.Dialer].
func (d *joinDialer) Dial(ctx context.Context) (transport.Conn, error) {
	n := d.net
	n.delay(ctx)
	peer, ends, err := d.identity()
	if err != nil {
		return nil, err
	}
	n.j.mu.Lock()
	away := n.cut[d.owner]
	n.j.mu.Unlock()
	b := n.j.broker.serving.Load()
	if away || b == nil {
		return nil, unavailable("no way")
	}
	t := &tap{j: n.j, owner: d.owner, broker: b}
	inner := transportmem.New(t, peer)
	c, err := inner.Dial(ctx)
	if err != nil {
		return nil, err
	}
	joined := &joinConn{Conn: c, owner: d.owner, dialer: inner}
	if !ends.IsZero() {
		time.AfterFunc(time.Until(ends), inner.Cut) // as the port does
	}
	n.j.mu.Lock()
	defer n.j.mu.Unlock()
	n.conns = append(n.conns, joined)
	return joined, nil
}

// cutOff ends the connections of one client, or of all clients if owner is empty.
func (n *joinNet) cutOff(owner string) {
	n.j.mu.Lock()
	var cut []*joinConn
	n.conns = slices.DeleteFunc(n.conns, func(c *joinConn) bool {
		if owner != "" && c.owner != owner {
			return false
		}
		cut = append(cut, c)
		return true
	})
	n.j.mu.Unlock()
	for _, c := range cut {
		c.dialer.Cut()
	}
}

func (n *joinNet) cutAll() { n.cutOff("") }

// close waits for the messages in flight.
func (n *joinNet) close() {
	n.cutAll()
	n.late.Wait()
}

func (n *joinNet) sourceDialer() transport.Dialer {
	return &joinDialer{n, "hub-source", func() (transport.Peer, time.Time, error) {
		return transport.Peer{Role: string(identity.Source), Name: joinSourceID}, time.Time{}, nil
	}}
}

// The user and the groups of the bootstrap token.
const bootstrapUser = "system:serviceaccount:open-cluster-management:agent-registration-bootstrap"

var bootstrapGroups = []string{"system:serviceaccounts", "system:serviceaccounts:open-cluster-management", "system:authenticated"}

// byToken authenticates a client by a bootstrap token that the hub knows.
func (n *joinNet) byToken(a *joinAgent) (transport.Peer, time.Time, error) {
	n.j.mu.Lock()
	defer n.j.mu.Unlock()
	if a.revoked {
		return transport.Peer{}, time.Time{}, &transport.Error{Code: transport.CodeUnauthenticated, Message: "the token is not valid"}
	}
	user := bootstrapUser
	if a.imposter {
		user += "-of-others"
	}
	return transport.Peer{Role: string(identity.Bootstrap), Name: user, User: user, Groups: bootstrapGroups}, time.Time{}, nil
}

// byCertificate authenticates a client by a certificate of the hub's CA.
func (n *joinNet) byCertificate(a *joinAgent) (transport.Peer, time.Time, error) {
	n.j.mu.Lock()
	credential := a.credential
	n.j.mu.Unlock()
	refused := &transport.Error{Code: transport.CodeUnauthenticated, Message: "no certificate that is good"}
	if credential == nil {
		return transport.Peer{}, time.Time{}, refused
	}
	block, _ := pem.Decode(credential.Cert)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return transport.Peer{}, time.Time{}, refused
	}
	if _, err = leaf.Verify(x509.VerifyOptions{Roots: n.j.hub.ca.Pool(), CurrentTime: time.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return transport.Peer{}, time.Time{}, refused
	}
	id, err := identity.Mapping{}.FromCertificate(leaf)
	if err != nil {
		return transport.Peer{}, time.Time{}, refused
	}
	return transport.Peer{
		Role: string(id.Role), Name: id.Name, User: leaf.Subject.CommonName, Groups: leaf.Subject.Organization, CertificateEnds: leaf.NotAfter, CertificateIssued: earliest.LatestIssuedAt(leaf),
	}, leaf.NotAfter, nil
}

// tap is between a connection and the broker. It observes all messages, and injects faults.
type tap struct {
	j      *join
	owner  string
	broker *broker.Broker
}

// Publish implements [transport.Server].
func (t *tap) Publish(ctx context.Context, p transport.Peer, event []byte, subscription string) (transport.Receipt, error) {
	n := t.j.net
	t.j.oracle.requested(p, event)
	n.delay(ctx)
	n.j.mu.Lock()
	loses, doubles, unclaimed := n.losing > 0, n.doubling > 0 && t.owner != "hub-source", n.unroutable > 0 && t.owner != "hub-source"
	switch {
	case loses:
		n.losing--
	case doubles:
		n.doubling--
	case unclaimed:
		n.unroutable--
	}
	n.j.mu.Unlock()
	switch {
	case loses && n.j.chance(2) == 0:
		return transport.Receipt{}, unavailable("lost on the way")
	case doubles:
		t.later(p, event, subscription)
	case unclaimed: // its publisher abandons it, and it still arrives
		t.later(p, event, subscription)
		return transport.Receipt{}, unavailable("the connection broke")
	}
	r, err := t.publish(ctx, p, event, subscription)
	n.delay(ctx)
	if loses {
		return transport.Receipt{}, unavailable("the answer was lost")
	}
	return r, err
}

// later delivers an event again, or late.
func (t *tap) later(p transport.Peer, event []byte, subscription string) {
	again := slices.Clone(event) // the memory is used again
	t.j.net.late.Go(func() {     // close waits for it
		<-time.After(time.Duration(t.j.chance(int(time.Minute))))
		ctx, stop := context.WithTimeout(context.Background(), time.Minute)
		defer stop()
		_, _ = t.publish(ctx, p, again, subscription) // no caller waits for the answer
	})
}

func (t *tap) publish(ctx context.Context, p transport.Peer, event []byte, subscription string) (transport.Receipt, error) {
	o := t.j.oracle
	reported := o.notePublished(p, event)
	o.before(reported)
	r, err := t.broker.Publish(ctx, p, event, subscription)
	if err == nil {
		o.after(reported)
	}
	return r, err
}

// Subscribe implements [transport.Server].
func (t *tap) Subscribe(ctx context.Context, p transport.Peer, s transport.RawSubscription, out transport.Stream) error {
	return t.broker.Subscribe(ctx, p, s, &tapStream{tap: t, peer: p, sub: s, ctx: ctx, out: out})
}

// tapStream is an observed stream.
type tapStream struct {
	*tap
	peer transport.Peer
	sub  transport.RawSubscription
	ctx  context.Context
	out  transport.Stream
}

// Accept implements [transport.Stream].
func (s *tapStream) Accept(a transport.Accepted) error { return s.out.Accept(a) }

// Send implements [transport.Stream].
func (s *tapStream) Send(parts ...[]byte) error {
	event := slices.Concat(parts...)
	s.j.oracle.sent(s.peer, s.sub, event)
	s.j.net.delay(s.ctx)
	return s.out.Send(event)
}
