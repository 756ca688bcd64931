package mqtt

import (
	"context"
	"sync"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/property"
)

// mostHeld is the maximum number of unacknowledged bytes of a group member. The broker keeps these bytes,
// because another member gets them if this one leaves.
const mostHeld = 8 << 20

// sharedSubscription is a source with several connections, each of which gets a share of the statuses. At the
// server it is one subscription, which exists as long as it has a member. It does not resume; its members
// request what they missed.
type sharedSubscription struct {
	key    groupKey
	cancel context.CancelFunc
	of     *subscription // the first member, whose settings all members share
	out    chan *delivery
	// ready is closed when the server has accepted or ended the group. ended is closed when the server has ended
	// it.
	ready, ended chan struct{}
	opened       bool
	accepted     transport.Accepted
	err          error
	// wake has a token if a delivery was given back.
	wake taskgroup.Bell

	mu      sync.Mutex
	members int // guarded by Front.mu
	back    []*delivery
}

// groupKey identifies a group: all members have the same values.
type groupKey struct {
	client           identity.Identity
	filter, dataType string
	qos              byte
}

// join makes s a member of its group, and creates the group for the first member.
func (f *Front) join(s *subscription) *sharedSubscription {
	key := groupKey{client: s.conn.conn.Caller(), filter: s.text, dataType: s.raw.DataType, qos: s.qos}
	f.mu.Lock()
	defer f.mu.Unlock()
	g := f.groups[key]
	if g == nil {
		ctx, cancel := context.WithCancel(context.Background())
		g = &sharedSubscription{
			key: key, cancel: cancel, of: s, out: make(chan *delivery), ready: make(chan struct{}), ended: make(chan struct{}),
			wake: taskgroup.NewBell(),
		}
		f.groups[key] = g
		f.serving.Go(func() { f.serveGroup(ctx, g) })
	}
	g.members++
	return g
}

// part ends a membership. The end of the last membership ends the group.
func (f *Front) part(g *sharedSubscription) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if g.members--; g.members == 0 {
		g.cancel()
		if f.groups[g.key] == g {
			delete(f.groups, g.key)
		}
	}
}

// serveGroup calls the server for a group.
func (f *Front) serveGroup(ctx context.Context, g *sharedSubscription) {
	g.err = f.guarded(func() error { return f.cfg.Server.Subscribe(ctx, g.of.conn.peer(), g.of.raw, groupStream{ctx, g}) })
	f.mu.Lock()
	if f.groups[g.key] == g {
		delete(f.groups, g.key) // the next member creates a new group
	}
	f.mu.Unlock()
	close(g.ended)
	select {
	case <-g.ready:
	default:
		close(g.ready)
	}
}

// share is the membership of a subscription in its group. It returns when either ends.
func (s *subscription) share() error {
	g := s.conn.join(s)
	defer s.conn.part(g)
	select {
	case <-g.ready:
	case <-s.ctx.Done():
		return errGone
	}
	if !g.opened {
		return g.err
	}
	if err := (stream{s}).Accept(g.accepted); err != nil {
		return err
	}
	for {
		d, err := g.next(s)
		if err != nil {
			return err
		}
		mine := &delivery{publication: d.publication, of: s, group: g}
		select {
		case s.conn.deliveries <- mine:
			s.conn.wake()
		case <-s.ctx.Done():
			g.giveBack(mine)
			return errGone
		}
	}
}

// next returns the next delivery for a member. Deliveries that another member did not acknowledge come first.
func (g *sharedSubscription) next(s *subscription) (*delivery, error) {
	for {
		if d := g.take(); d != nil {
			return d, nil
		}
		select {
		case d := <-g.out:
			return d, nil
		case <-g.wake:
		case <-g.ended:
			return nil, g.err
		case <-s.ctx.Done():
			return nil, errGone
		}
	}
}

func (g *sharedSubscription) take() *delivery {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.back) == 0 {
		return nil
	}
	d := g.back[0]
	if g.back = g.back[1:]; len(g.back) > 0 {
		g.wake.Ring()
	}
	return d
}

// giveBack returns an unacknowledged delivery to the group, for another member.
func (g *sharedSubscription) giveBack(d *delivery) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.back = append(g.back, d)
	g.wake.Ring()
}

// groupStream is the sending side of a group.
type groupStream struct {
	ctx context.Context //nolint:containedctx // it is the life of the group
	*sharedSubscription
}

var _ transport.Stream = groupStream{}

// Accept implements [transport.Stream].
func (s groupStream) Accept(a transport.Accepted) error {
	s.opened, s.accepted = true, a
	close(s.ready)
	return nil
}

// Send implements [transport.Stream].
func (s groupStream) Send(parts ...[]byte) error {
	d, err := s.of.delivery(parts)
	if d == nil || err != nil {
		return err
	}
	select {
	case s.out <- d:
		return nil
	case <-s.ctx.Done():
		return errGone
	}
}

// returned gives the connection's unacknowledged deliveries back to their groups.
func (c *conn) returned() {
	for _, d := range c.unacked {
		d.giveBack()
	}
	for len(c.deliveries) > 0 {
		(<-c.deliveries).giveBack()
	}
}

// giveBack returns a delivery of a group to the group.
func (d *delivery) giveBack() {
	if d.group != nil {
		d.group.giveBack(d)
	}
}

// errNotShared rejects $share in a filter of an agent.
var errNotShared = &filterError{property.SharedNotSupported, &transport.Error{
	Code: transport.CodeInvalid, Next: transport.NextStop, Message: "only the statuses of a source are shared by a group",
	Hint: "subscribe to the works of a cluster without $share",
}}
