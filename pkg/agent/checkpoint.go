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

	// listed: a list was sent, or is about to be (listDue). What was received
	// after the mark of the set's clock was not on it.
	listed, listDue bool
	mark            uint64
	// differs: the digests differed, and what the list leads to is awaited.
	// told: that they still do after it was logged.
	differs, told bool

	// matched: the latest checkpoint found that exactly what the broker has is
	// held, but for the orphans, which no record explains.
	matched bool
	orphans []string
	// compared are the sources that have finished comparing.
	compared []string

	// ack is the latest that is to be sent, acked the latest that was.
	ack, acked *codec.Ack
}

// verdict is what a checkpoint means.
type verdict int

const (
	// await: the answer to the list is not complete.
	await verdict = iota
	// list: nobody knows why the digests differ; the list shows it.
	list
	// advance: everything up to the cursor is held, as well as can be.
	advance
)

// judge compares a checkpoint with what is held. own is the digest of that
// without the orphans.
func (l *link) judge(cp codec.Checkpoint, own codec.Digest) verdict {
	l.matched = cp.Digest != nil && *cp.Digest == own
	switch {
	case l.matched:
		l.differs = false
	case cp.Digest == nil:
		if l.differs && !cp.Listed {
			return await
		}
	case !l.listed:
		l.listed, l.listDue, l.differs = true, true, true
		return list
	case !cp.Listed:
		l.differs = true
		return await
	}
	return advance
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
	c.mu.Lock()
	if !c.link.hawser {
		c.mu.Unlock()
		c.drop(ctx, eventIgnored, e)
		return
	}
	due, sequenceErr := c.outbox.Observe(cp.HighestSequenceID)
	slices.Sort(cp.Orphans)
	c.link.orphans = c.set.Lacks(slices.Compact(cp.Orphans), c.link.mark)
	c.link.compared = cp.ComparedSources
	own := c.set.Digest(c.link.orphans)
	v := c.link.judge(cp, own)
	tell := v == advance && cp.Digest != nil && !c.link.matched && !c.link.told
	c.link.told = c.link.told || tell
	var names []string
	sync, save := v == list, false
	if v == advance {
		names, sync, save = c.advance(cp, own)
	}
	orphans := len(c.link.orphans)
	c.mu.Unlock()

	c.config.Metrics.event(eventCheckpoint)
	switch {
	case sequenceErr != nil:
		c.config.Log.ErrorContext(ctx, "the broker has a sequence id of this agent that no newer one can follow", "error", sequenceErr)
	case tell:
		c.config.Log.ErrorContext(ctx, "what is held differs from what the broker has, also after everything was listed",
			"held", own.Count, "broker", cp.Digest.Count, "orphans", orphans, "revision", cp.Cursor.Revision)
	case v == list:
		c.config.Log.InfoContext(ctx, "what is held differs from what the broker has: listing everything",
			"held", own.Count, "broker", cp.Digest.Count, "revision", cp.Cursor.Revision)
	}
	for _, id := range due {
		c.config.Send(id)
	}
	if sync {
		c.config.Sync()
	}
	if save {
		c.save(0)
	}
	for _, name := range names {
		c.config.Wake(c.key(name), true)
	}
}

// advance moves the cursor. It returns the names of works that are confirmed by
// that, and whether there is an ack to send, or one to come once the cursor is
// on disk. c.mu is held.
func (c *Core) advance(cp codec.Checkpoint, own codec.Digest) (names []string, sync, save bool) {
	c.cursor = cp.Cursor
	a := codec.Ack{Cursor: cp.Cursor}
	if cp.Digest != nil {
		a.Digest = &own
	}
	if c.link.matched {
		c.set.Settled(cp.Cursor.Revision)
	}
	// A cursor alone confirms nothing: what this process loaded may be older
	// than the cursor that it loaded.
	if c.link.matched || cp.Digest != nil && cp.Listed {
		names = c.set.Confirm(c.link.orphans)
	}
	switch {
	case !c.news(a):
	case c.config.Journal == nil:
		c.link.ack, sync = &a, true
	default:
		c.keeper.target, c.keeper.link, save = &a, c.link.serial, true
	}
	return names, sync, save
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
	c.link.listed, c.link.listDue, c.link.mark = true, false, c.set.Clock()
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

	ack *codec.Ack // nil: a list
}

// TakeSync returns the next event about the subscription itself; ok is false if
// there is none. Of several acks only the latest is sent.
func (c *Core) TakeSync() (l SyncLetter, ok bool) {
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
		return c.link.listDue || c.link.ack != nil
	}
	switch {
	case err == nil:
	case !transport.Retryable(err):
		c.config.Log.Error("the broker refused what it was told about the subscription", "type", l.Event.Type(), "error", err)
	case l.ack == nil:
		c.link.listDue = true
	case c.link.ack == nil:
		c.link.ack = l.ack
	}
	return c.link.listDue || c.link.ack != nil
}
