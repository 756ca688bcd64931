package agent

import (
	"context"
	"slices"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// protocol is the version of Hawser's additions to the OCM protocol.
const protocol = 1

// link is one subscription and what its checkpoints said. Guarded by Core.mu.
type link struct {
	serial       uint64 // counts subscriptions
	subscription string
	hawser       bool // the broker gives checkpoints

	resyncProgress
	// listDue: a list is about to be sent. What was received after the mark of the set's
	// clock was not on the latest.
	listDue bool
	mark    uint64
	// told: it was logged that the digests differ after a list.
	told bool

	// matched: the latest checkpoint found that exactly what the broker has is
	// held, but for the orphans, which no record explains.
	matched bool
	orphans []string
	// compared are the sources that have finished comparing.
	compared []string

	// ack is the latest that is to be sent, acked the latest that was.
	ack, acked *codec.Ack

	// unexplained is what the broker was told last that no work explains;
	// unexplainedDue says that there is another to tell. deaf: the broker is older
	// and does not take that.
	unexplained    codec.Unexplained
	unexplainedDue bool
	deaf           bool
}

// checkpoint takes a checkpoint: what was received before it is held, and so
// that is how far the agent is, unless the digest shows otherwise.
func (c *Core) checkpoint(ctx context.Context, e codec.Event) {
	cp, err := codec.ParseCheckpoint(e)
	if err != nil {
		c.config.Metrics.event(eventUndecodable)
		c.config.Log.WarnContext(ctx, "checkpoint that cannot be read", "error", err)
		return
	}
	f, ok := c.heed(cp)
	if !ok {
		c.drop(ctx, eventIgnored, e)
		return
	}
	c.config.Metrics.event(eventCheckpoint)
	log := c.config.Log.With("held", f.own.Count, "orphans", f.orphans, "revision", cp.Cursor.Revision)
	if f.sequenceErr != nil {
		log.ErrorContext(ctx, "the broker has a sequence id of this agent that no newer one can follow", "error", f.sequenceErr)
	}
	if f.tell {
		log.ErrorContext(ctx, "what is held differs from what the broker has, also after everything was listed", "broker", cp.Digest.Count)
	}
	if f.verdict == list {
		log.InfoContext(ctx, "what is held differs from what the broker has: listing everything", "broker", cp.Digest.Count)
	}
	for _, id := range f.send {
		c.config.Send(id)
	}
	if f.sync {
		c.config.Sync()
	}
	if f.save {
		c.save(0)
	}
	for _, key := range f.wake {
		c.config.Wake(key, true)
	}
	for _, key := range f.suspects {
		c.config.Wake(key, false)
	}
}

// findings is what a checkpoint leads to.
type findings struct {
	verdict     verdict
	own         codec.Digest
	orphans     int
	tell        bool // digests that do not become equal
	sequenceErr error

	send           []string // ids
	wake, suspects []string // keys
	sync, save     bool
}

// heed lets a checkpoint count. ok is false if this broker gives none.
func (c *Core) heed(cp codec.Checkpoint) (f findings, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.link.hawser {
		return f, false
	}
	before := c.link
	f.send, f.sequenceErr = c.outbox.Observe(cp.HighestSequenceID)
	slices.Sort(cp.Orphans)
	c.link.orphans = c.set.Lacks(slices.Compact(cp.Orphans), c.link.mark)
	c.link.compared = cp.ComparedSources
	f.own, f.orphans = c.set.Digest(c.link.orphans), len(c.link.orphans)
	event, gap := c.link.classify(cp, f.own, c.set.Clock() > c.link.mark)
	c.link.matched, f.verdict = event == equal, c.link.step(event, gap)
	c.link.listDue = c.link.listDue || f.verdict == list || f.verdict == advanceAndList
	switch f.verdict {
	case list:
		f.sync = true
	case advance, advanceAndList:
		f.tell = cp.Digest != nil && !c.link.matched && !c.link.told
		c.link.told = c.link.told || f.tell
		c.advance(cp, &f)
		f.sync = f.sync || c.link.listDue
	case await:
	}
	if !c.link.sameEvidence(before) {
		f.suspects = c.suspects()
	}
	c.reviseUnexplained()
	return f, true
}

// sameEvidence reports whether the same is known about what nobody wants.
func (l *link) sameEvidence(o link) bool {
	return l.matched == o.matched && slices.Equal(l.compared, o.compared) && slices.Equal(l.orphans, o.orphans)
}

// advance moves the cursor, confirms what that confirms, and has it
// acknowledged: once it is on disk, if there is a disk. c.mu is held.
func (c *Core) advance(cp codec.Checkpoint, f *findings) {
	c.cursor = cp.Cursor
	a := codec.Ack{Cursor: cp.Cursor}
	if cp.Digest != nil {
		a.Digest = &f.own
	}
	if c.link.matched {
		c.set.Proven(cp.Cursor.Revision)
	}
	// A cursor alone confirms nothing: what this process loaded may be older
	// than the cursor that it loaded.
	if c.link.matched || cp.Digest != nil && cp.Listed {
		for _, name := range c.set.Confirm(c.link.orphans) {
			f.wake = append(f.wake, c.key(name))
		}
	}
	switch {
	case !c.news(a):
	case c.config.Journal == nil:
		c.link.ack, f.sync = &a, true
	default:
		c.keeper.target, c.keeper.link, f.save = &a, c.link.serial, true
	}
}

// news reports whether an ack says something new on this link. c.mu is held.
func (c *Core) news(a codec.Ack) bool {
	last := c.link.acked
	if c.link.ack != nil {
		last = c.link.ack
	}
	if c.keeper.target != nil && c.keeper.link == c.link.serial {
		last = c.keeper.target
	}
	return last == nil || !sameAck(*last, a)
}

func sameAck(a, b codec.Ack) bool {
	if a.Cursor != b.Cursor || (a.Digest == nil) != (b.Digest == nil) {
		return false
	}
	return a.Digest == nil || *a.Digest == *b.Digest
}

// list builds the list of everything that is held. c.mu is held.
func (c *Core) list() (codec.Event, error) {
	c.link.listDue, c.link.mark = false, c.set.Clock()
	return codec.NewSpecResyncRequest(codec.ResyncParams{
		ID: c.config.NewID(), Time: c.config.Now(), Source: c.config.ClientID, Cluster: c.config.Cluster, DataType: codec.ManifestBundles,
	}, c.set.Versions())
}

// SyncLetter is an event that belongs to one subscription: an ack, or a list.
type SyncLetter struct {
	Event codec.Event
	// Subscription is the id of the subscription that it is to be published on,
	// and on no other.
	Subscription string

	ack *codec.Ack
	// unexplained: it says what no work explains. Neither: a list.
	unexplained bool
}

// NextSync returns the next event about the subscription itself; ok is false if
// there is none. Of several acks only the latest is sent.
func (c *Core) NextSync() (l SyncLetter, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.Subscription = c.link.subscription
	var err error
	switch {
	case !c.connected:
		return l, false
	case c.link.listDue:
		l.Event, err = c.list()
	case c.link.ack != nil:
		l.ack, c.link.ack = c.link.ack, nil
		c.link.acked = l.ack
		l.Event, err = codec.NewAck(codec.SyncParams{
			ID: c.config.NewID(), Time: c.config.Now(), Source: c.config.ClientID, Cluster: c.config.Cluster,
		}, *l.ack)
	case c.link.unexplainedDue:
		c.link.unexplainedDue, l.unexplained = false, true
		c.link.unexplained = c.findUnexplained()
		l.Event, err = codec.NewUnexplained(codec.SyncParams{
			ID: c.config.NewID(), Time: c.config.Now(), Source: c.config.ClientID, Cluster: c.config.Cluster,
		}, c.link.unexplained)
	default:
		return l, false
	}
	if err != nil {
		c.config.Log.Error("list or ack that cannot be sent", "error", err)
	}
	return l, err == nil
}

// SyncDone tells what became of an event from TakeSync. again says that there
// is another one, to be sent after a back-off if err is not nil.
func (c *Core) SyncDone(l SyncLetter, err error) (again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.connected || c.link.subscription != l.Subscription {
		return c.link.due()
	}
	switch {
	case err == nil:
	case l.unexplained && !transport.Retryable(err):
		c.link.deaf = true
		c.config.Log.Debug("the broker does not take what no work explains", "error", err)
	case l.unexplained:
		c.link.unexplainedDue = true
	case !transport.Retryable(err):
		c.config.Log.Error("the broker refused what it was told about the subscription", "type", l.Event.Type(), "error", err)
	case l.ack == nil:
		c.link.listDue = true
	case c.link.ack == nil:
		c.link.ack = l.ack
	}
	return c.link.due()
}

// due reports whether TakeSync has something.
func (l *link) due() bool { return l.listDue || l.ack != nil || l.unexplainedDue }
