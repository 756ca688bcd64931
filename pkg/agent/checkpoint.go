package agent

import (
	"context"
	"slices"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// checkpoint handles a checkpoint. All events before it are held, so the agent has reached its cursor, unless
// the digest differs.
func (c *Core) checkpoint(ctx context.Context, e codec.Event) {
	cp, err := codec.ParseCheckpoint(e)
	if err != nil {
		c.config.Metrics.event(eventUndecodable)
		c.config.Log.WarnContext(ctx, "unreadable checkpoint", "error", err)
		return
	}
	f, ok := c.applyCheckpoint(cp, e.Time())
	if !ok {
		c.drop(ctx, eventIgnored, e)
		return
	}
	c.config.Metrics.event(eventCheckpoint)
	log := c.config.Log.With("listed", f.own.Count, "orphans", f.orphans, "revision", cp.Cursor.Revision)
	if f.sequenceErr != nil {
		log.ErrorContext(ctx, "the broker has a sequence id of this agent that no newer one can exceed", "error", f.sequenceErr)
	}
	if f.logMismatch {
		log.ErrorContext(ctx, "the held works differ from the broker's, also after a full list", "broker", cp.Digest.Count)
	}
	if f.action == list {
		log.InfoContext(ctx, "the held works differ from the broker's: listing all works", "broker", cp.Digest.Count)
	}
	for _, id := range f.send {
		c.config.Send(id)
	}
	if f.sync {
		c.config.Sync(0)
	}
	if f.save {
		c.save(0)
	}
	for _, key := range f.wake {
		c.config.Wake(key, true)
	}
	for _, key := range f.recheck {
		c.config.Wake(key, false)
	}
}

// checkpointActions is the result of a checkpoint.
type checkpointActions struct {
	action      resyncAction
	own         codec.Digest
	orphans     int
	logMismatch bool // the digests stay different
	sequenceErr error

	send          []string // ids
	wake, recheck []string // keys
	sync, save    bool
}

// applyCheckpoint applies a checkpoint; at is the broker's time. ok is false if this broker sends no
// checkpoints.
func (c *Core) applyCheckpoint(cp codec.Checkpoint, at time.Time) (f checkpointActions, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.subscription.hawser {
		return f, false
	}
	before := *c.subscription
	c.outbox.Clock(at, c.config.Now())
	f.send, f.sequenceErr = c.outbox.Observe(cp.HighestSequenceID)
	slices.Sort(cp.Orphans)
	orphans := c.set.Missing(slices.Compact(cp.Orphans), c.subscription.listClock)
	f.own, f.orphans = c.set.Digest(orphans), len(orphans)
	f.action = c.subscription.applyCheckpoint(cp, orphans, f.own, c.set.Clock() > c.subscription.listClock)
	switch f.action {
	case list:
		f.sync = true
	case advance, advanceAndList:
		f.logMismatch = cp.Digest != nil && c.subscription.shouldLog()
		c.advance(cp, &f)
		f.sync = f.sync || c.subscription.listDue
	case await:
	}
	if !c.subscription.sameEvidence(before) {
		f.recheck = c.orphans.keysToRecheck()
	}
	c.orphans.revise()
	return f, true
}

// advance moves the cursor, confirms the works it covers, and acknowledges it after it is on disk, if there is
// a journal. c.mu is held.
func (c *Core) advance(cp codec.Checkpoint, f *checkpointActions) {
	c.subscription.move(cp.Cursor)
	a := codec.Ack{Cursor: cp.Cursor}
	if cp.Digest != nil {
		a.Digest = &f.own
	}
	if c.subscription.inSync {
		c.set.Verified(cp.Cursor.Revision)
	}
	// A cursor alone confirms nothing: the loaded works may be older than the loaded cursor.
	if c.subscription.inSync || cp.Digest != nil && cp.ListAnswered {
		for _, name := range c.set.Confirm(c.subscription.orphans) {
			f.wake = append(f.wake, c.keyOf(name))
		}
	}
	switch {
	case !c.subscription.news(c.persister.awaited(), a):
	case c.config.Journal == nil:
		f.sync = c.subscription.acknowledge(c.subscription.serial, &a)
	default:
		c.persister.noteUntil(&a)
		f.save = true
	}
}

// list builds the list of all held works. c.mu is held.
func (c *Core) list() (codec.Event, error) {
	c.subscription.listing(c.set.Clock(), c.config.Now())
	versions := c.set.Versions()
	e, err := codec.NewSpecResyncRequest(codec.ResyncParams{
		ID: c.config.NewID(), Time: c.config.Now(), Source: c.config.ClientID, Cluster: c.config.Cluster, DataType: codec.ManifestBundles,
	}, versions)
	if err == nil {
		c.sessions.stamp(c.subscription, c.sessions.peer, &e)
	}
	if limit := c.subscription.limit; c.subscription.stateless && limit > 0 && len(e.Data()) > limit {
		c.config.Log.Error("the list of this cluster's works does not fit into one event of the broker, and without it nothing is delivered; raise the broker's largest message, or use fewer works on this cluster",
			"works", len(versions), "bytes", len(e.Data()), "limit", limit)
	}
	return e, err
}

// SyncEvent is an event of one subscription: an ack, or a list.
type SyncEvent struct {
	Event codec.Event
	// Subscription is the id of the only subscription on which it may be published.
	Subscription string

	ack *codec.Ack
	// orphans: an orphan report; alive: a keepalive; neither: a list.
	orphans, alive bool
}

// NextSync returns the next event about the subscription itself; ok is false if there is none. Only the latest
// of several acks is sent.
func (c *Core) NextSync() (l SyncEvent, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.Subscription = c.subscription.subscription
	var err error
	switch {
	case !c.connected:
		return l, false
	case c.subscription.lists(c.config.Now()):
		l.Event, err = c.list()
	case c.subscription.ack != nil:
		l.ack = c.subscription.takeAck()
		l.Event, err = codec.NewAck(codec.SyncParams{
			ID: c.config.NewID(), Time: c.config.Now(), Source: c.config.ClientID, Cluster: c.config.Cluster,
		}, *l.ack)
	case c.subscription.orphanReportDue:
		found := c.orphans.find()
		l.orphans = true
		c.subscription.reportPending(found)
		l.Event, err = codec.NewOrphanReport(codec.SyncParams{
			ID: c.config.NewID(), Time: c.config.Now(), Source: c.config.ClientID, Cluster: c.config.Cluster,
		}, found)
	case c.subscription.aliveDue:
		l.alive = true
		l.Event, err = c.keepAlive()
	default:
		return l, false
	}
	if err != nil {
		c.config.Log.Error("a list or ack cannot be sent", "error", err)
	}
	return l, err == nil
}

// SyncDone reports the result of publishing an event of NextSync. again: there is another event, to be sent
// after a back-off if err is not nil.
func (c *Core) SyncDone(l SyncEvent, err error) (again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.connected || c.subscription.subscription != l.Subscription {
		return c.subscription.due(c.config.Now())
	}
	switch refused := err != nil && !transport.Retryable(err); {
	case refused && l.orphans:
		c.config.Log.Debug("the broker rejects orphan reports", "error", err)
	case refused:
		c.config.Log.Error("the broker rejected an event about the subscription", "type", l.Event.Type(), "error", err)
	}
	c.subscription.reportSent(l, err)
	return c.subscription.due(c.config.Now())
}
