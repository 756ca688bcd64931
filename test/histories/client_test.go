package histories

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/session"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/grpc"
	"github.com/hawser-io/hawser/test/histories/judge"
)

// heartbeat is the interval of heartbeats. A client notices a lost broker after three.
const heartbeat = time.Second

// newDialer returns a dialer for brokers.
func newDialer(t *testing.T, addresses string) *grpc.Dialer {
	t.Helper()
	d, err := grpc.NewDialer(grpc.Options{
		Target: addresses, Insecure: true, DialTimeout: 4 * time.Second, PublishTimeout: 3 * time.Second,
		SubscribeTimeout: 4 * time.Second, HealthTimeout: transport.MissedHeartbeats * heartbeat, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// client keeps a session with the brokers, and can be restarted.
type client struct {
	name    string
	trace   *trace
	dialer  transport.Dialer
	filter  transport.Filter
	handler session.Handler

	mu      sync.Mutex
	session *session.Session
	restart context.CancelFunc

	begun        time.Duration // when the running subscribe call began
	subscription string
}

// run keeps sessions until ctx ends, one after the other.
func (c *client) run(ctx context.Context) error {
	for ctx.Err() == nil {
		lifetime, end := context.WithCancel(ctx)
		s := session.New(session.Config{
			Dialer: c.dialer, Filter: c.filter, Handler: c.handler, Log: slog.New(slog.DiscardHandler),
			Backoff: session.Backoff{Min: 50 * time.Millisecond, Max: time.Second, Refused: 2 * time.Second, MaxDelay: time.Second},
		})
		c.mu.Lock()
		c.session, c.restart = s, end
		c.mu.Unlock()
		err := s.Run(lifetime)
		end()
		if err != nil {
			return err
		}
	}
	return nil
}

// end ends the session. The next one begins at once.
func (c *client) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.restart != nil {
		c.restart()
	}
}

// publish publishes an event. on "" means the current subscription. sent is false if there is none.
func (c *client) publish(ctx context.Context, e codec.Event, on string) (r transport.Receipt, sent bool, err error) {
	c.mu.Lock()
	s := c.session
	c.mu.Unlock()
	if s == nil || !s.Connected() {
		return r, false, context.Canceled
	}
	if on != "" {
		r, err = s.PublishOn(ctx, on, e)
	} else {
		r, err = s.Publish(ctx, e)
	}
	return r, true, err
}

// hello begins a subscribe call.
func (c *client) hello(cursor codec.Cursor) transport.Hello {
	c.begun = c.trace.now()
	return transport.Hello{Protocol: transport.Protocol, Cursor: cursor.String(), ClusterUID: c.filter.Cluster, Heartbeat: heartbeat}
}

// subscribed records an accepted subscription. It returns whether the broker continues from the cursor.
func (c *client) subscribed(a transport.Accepted, cursor codec.Cursor) (resumed bool) {
	c.subscription = a.SubscriptionID
	resumed = a.Resync == codec.ResyncCursor && cursor != (codec.Cursor{})
	c.trace.add(judge.Event{
		Kind: judge.Subscribe, From: c.begun, Client: c.name, Incarnation: cursor.Incarnation, Revision: cursor.Revision, List: !resumed, Text: a.Broker,
	})
	return resumed
}

// checkpoint records a checkpoint.
func (c *client) checkpoint(k codec.Checkpoint) {
	c.trace.add(judge.Event{Kind: judge.Checkpoint, Client: c.name, Incarnation: k.Cursor.Incarnation, Revision: k.Cursor.Revision})
}

// ack acknowledges a checkpoint. If that fails, a later ack has the same effect.
func (c *client) ack(ctx context.Context, a codec.Ack) {
	e, err := codec.NewAck(c.params(), a)
	if err == nil {
		_, _, _ = c.publish(ctx, e, c.subscription)
	}
}

func (c *client) params() codec.SyncParams {
	return codec.SyncParams{ID: newID(), Time: time.Now(), Source: c.name, Cluster: c.filter.Cluster, Owner: c.filter.Source}
}

var ids atomic.Int64

func newID() string { return "e-" + codec.FormatRevision(uint64(ids.Add(1))) }
