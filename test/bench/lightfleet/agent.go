package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/session"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
)

// agent is the light agent of one cluster. It implements session.Handler, whose methods are called serially.
type agent struct {
	fleet   *fleet
	cluster string
	session *session.Session

	held   holdings
	cursor codec.Cursor
	// listed: a list was sent on this subscription. subscribed is when the broker accepted this subscription.
	listed     bool
	subscribed time.Time
	// arrived has the latest delivery, if the source has not taken it.
	arrived chan delivery
	// first is the version of its first work.
	first atomic.Int64

	// proven is guarded by fleet.mu: the agent was in sync after the last mark, or has not lost its broker since the
	// last watch.
	proven bool
}

// delivery is the arrival of one version of a work.
type delivery struct {
	version int64
	at      time.Time
}

// newAgent makes the agent of a cluster, which has a number, with the credentials and the session of Hawser's agent.
func (f *fleet) newAgent(cluster string, number int) (*agent, error) {
	dialer, err := f.dialer(pki.Agent, cluster, f.addressOf(number))
	if err != nil {
		return nil, err
	}
	a := &agent{fleet: f, cluster: cluster, arrived: make(chan delivery, 1)}
	a.session = session.New(session.Config{
		Dialer:  dialer,
		Filter:  transport.Filter{Cluster: cluster, DataType: codec.ManifestBundles},
		Handler: a,
		Log:     discard,
	})
	return a, nil
}

// sourceIP is the address of the source. A broker serves the handshakes of addresses in turns, and a source does not
// share the address of thousands of agents.
var sourceIP = net.IPv4(127, 0, 0, 78)

var discard = slog.New(slog.DiscardHandler)

// addressOf returns the IP address of an agent, nil for that of the machine.
func (f *fleet) addressOf(number int) net.IP {
	if f.perAddress == 0 {
		return nil
	}
	n := number / f.perAddress
	return net.IPv4(127, 1, byte(n/250), byte(1+n%250))
}

// dialer returns the product's dialer with the certificate of (role, name) and that address.
func (f *fleet) dialer(role pki.Role, name string, from net.IP) (transport.Dialer, error) {
	d := pki.Dir(f.pki)
	creds, err := identity.Files{CA: d.CACert(), Cert: d.Cert(role, name), Key: d.Key(role, name)}.
		Client("", func(err error) { fmt.Fprintln(os.Stderr, err) })
	if err != nil {
		return nil, err
	}
	o := transportgrpc.Options{Target: f.addr, Credentials: creds, Log: discard}
	if from != nil {
		o.DialContext = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}).DialContext
	}
	return transportgrpc.NewDialer(o)
}

// Hello implements session.Handler.
func (a *agent) Hello() transport.Hello {
	return transport.Hello{Protocol: a.fleet.protocol, Cursor: a.cursor.String()}
}

// Subscribed implements session.Handler.
func (a *agent) Subscribed(_ context.Context, accepted transport.Accepted) ([]codec.Event, error) {
	a.subscribed, a.listed = time.Now(), false
	if accepted.Resync == codec.ResyncCursor {
		return nil, nil
	}
	a.cursor = codec.Cursor{}
	e, err := a.list()
	return []codec.Event{e}, err
}

// Handle implements session.Handler.
func (a *agent) Handle(ctx context.Context, e codec.Event) error {
	if e.Type() == codec.TypeCheckpoint {
		return a.checkpoint(ctx, e)
	}
	id, isWork, err := codec.StringExtension(e, codec.ExtResourceID)
	if err != nil || !isWork {
		return err // without an id, it is a request for statuses, and this agent has none
	}
	tag, _, err := codec.TagExtension(e)
	if err != nil {
		return err
	}
	version, _, err := codec.IntegerExtension(e, codec.ExtResourceVersion)
	if err != nil {
		return err
	}
	a.held.put(id, int64(version), tag)
	if id == workID(a.cluster, 0) {
		a.first.Store(int64(version))
	}
	select {
	case <-a.arrived: // an earlier delivery that the source has not taken
	default:
	}
	a.arrived <- delivery{int64(version), time.Now()} // has space: only this method sends
	return nil
}

// checkpoint answers a checkpoint. The cursor is kept in memory, so it is as good as on disk at once.
func (a *agent) checkpoint(ctx context.Context, e codec.Event) error {
	c, err := codec.ParseCheckpoint(e)
	if err != nil {
		return err
	}
	ack := codec.Ack{Cursor: c.Cursor, Digest: &a.held.digest}
	d := decide(a.held.digest, c.Digest, a.listed)
	switch d {
	case sendList:
		if e, err = a.list(); err != nil {
			return err
		}
		_, err = a.session.Publish(ctx, e)
		return err
	case ackCursor:
		ack.Digest = nil
	case ackInSync, ackOther:
	}
	a.cursor = c.Cursor
	if e, err = codec.NewAck(codec.SyncParams{ID: a.fleet.newID(), Time: time.Now(), Source: a.id(), Cluster: a.cluster}, ack); err != nil {
		return err
	}
	if _, err = a.session.Publish(ctx, e); err == nil && d == ackInSync {
		a.fleet.inSync(a)
	}
	return err
}

// list returns the list of all held works.
func (a *agent) list() (codec.Event, error) {
	a.listed = true
	return codec.NewSpecResyncRequest(codec.ResyncParams{
		ID: a.fleet.newID(), Time: time.Now(), Source: a.id(), Cluster: a.cluster, DataType: codec.ManifestBundles,
	}, a.held.list())
}

func (a *agent) id() string { return a.cluster + "-agent" }

// Disconnected implements session.Handler. The next Hello resumes from the cursor.
func (a *agent) Disconnected(err error) { a.fleet.disconnected(a, err) }
