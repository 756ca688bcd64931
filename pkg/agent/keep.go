package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/desired"
	"github.com/hawser-io/hawser/pkg/agent/journal"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Journal is where what is wanted outlives the process; a *journal.Journal is
// one. What its methods promise is said there.
type Journal interface {
	Load(b journal.Binding, take func(codec.Event) error) (journal.State, error)
	Put(e codec.Event) error
	Remove(id string) error
	Checkpoint(c codec.Cursor) error
	DropCursor() error
	Dirty() []string
	Reserve(sequence string) error
	SaveReported(r journal.Reported) error
	SaveLeft(left map[string]string) error
}

const (
	// Failures of the state directory are tried again after waits that begin at
	// firstSaveRetry and double.
	firstSaveRetry = time.Second
	lastSaveRetry  = time.Minute
	// savedAtOnce bounds the failures of one Save: a full disk fails for all.
	savedAtOnce = 10
	// reportedDelay is how long accepted statuses wait to be noted together.
	reportedDelay = 30 * time.Second
	// reserveAhead is for how long sequence ids are reserved at a time.
	reserveAhead = time.Minute
)

// keeper is what is still to be done on disk. Guarded by Core.mu, but for disk.
type keeper struct {
	// disk is held while an entry is written or removed and what follows from
	// that is noted, so that no entry is older than what is held. It is taken
	// before Core.mu, which is never held while the disk works.
	disk sync.Mutex

	// unsaved are works whose entry is not as it should be, by id; gone are
	// entries that are to be removed.
	unsaved map[string]conditions.Lapse
	gone    map[string]bool
	// onDisk: there is a cursor on disk. drop: it must go.
	onDisk, drop bool
	// target is what is to be stored, and acknowledged then on this link.
	target *codec.Ack
	link   uint64

	// failing: the last attempt of something failed; failures counts Saves in a
	// row that did not get everything done; last is the id that failed last.
	failing  bool
	failures int
	last     string

	// reserving is held while sequence ids are reserved.
	reserving sync.Mutex

	// reported is when accepted statuses are to be noted; zero if there are none.
	reported time.Time
}

// save asks for a call of Save.
func (c *Core) save(after time.Duration) {
	if c.config.Journal != nil {
		c.config.Save(after)
	}
}

// entry is a work on the journal, and when it was written.
type entry struct {
	work    *desired.Work
	written time.Time
}

// readEntry reads one entry of the journal.
func (c *Core) readEntry(e codec.Event) (entry, error) {
	w, err := decodeEntry(e)
	if err == nil && w.Cluster != c.config.Cluster {
		err = errors.New("the work is of cluster " + w.Cluster)
	}
	return entry{work: w, written: e.Time()}, err
}

// load takes what an earlier process left.
func (c *Core) load() error {
	var entries []entry
	s, err := c.config.Journal.Load(journal.Binding{
		ClusterUID: c.clusterUID, Cluster: c.config.Cluster, HubHash: c.config.HubHash, AgentID: c.config.AgentID,
	}, func(e codec.Event) error {
		read, err := c.readEntry(e)
		if err == nil {
			entries = append(entries, read)
		}
		return err
	})
	if err != nil {
		return err
	}
	// Where revisions do not say which of two came later, this does.
	slices.SortStableFunc(entries, func(a, b entry) int { return a.written.Compare(b.written) })
	c.mu.Lock()
	for _, e := range entries {
		if lost := c.set.Load(e.work); lost != nil {
			c.keeper.gone[lost.ResourceID] = true
		}
	}
	c.cursor, c.keeper.onDisk = s.Cursor, s.Cursor != (codec.Cursor{})
	accepted := maps.Clone(s.Reported.Accepted)
	maps.DeleteFunc(accepted, func(id, _ string) bool { return c.set.Get(id) == nil })
	sequenceErr := c.outbox.Restore(s.Reported.Sequence, s.Reserved, accepted)
	names := c.set.Names()
	c.ledger.restore(s.Left, func(key string) bool {
		name, ours := c.workName(key)
		return ours && slices.Contains(names, name)
	})
	c.mu.Unlock()
	if sequenceErr != nil {
		c.config.Log.Error("the journal has a sequence id that no newer one can follow", "error", sequenceErr)
	}
	if s.Works > 0 || s.Damaged > 0 {
		c.config.Log.Info("works of an earlier process", "works", s.Works, "damaged", s.Damaged, "cursor", s.Cursor.String())
	}
	for _, name := range names {
		c.config.Wake(c.key(name), true)
	}
	c.save(0)
	return nil
}

// put writes the entry of a work before it is acted upon. A failure does not
// keep the work from being applied: it is told in the work's condition, and
// tried again. c.keeper.disk is held, c.mu is not.
func (c *Core) put(ctx context.Context, w *desired.Work) error {
	e, err := encodeEntry(w, c.config.Now())
	if err == nil {
		err = c.config.Journal.Put(e)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.keeper.gone, w.ResourceID)
	if err == nil {
		delete(c.keeper.unsaved, w.ResourceID)
		return nil
	}
	c.lapsed(ctx, w.ResourceID, err)
	return err
}

// lapsed notes that the entry of a work is not as it should be. c.mu is held.
func (c *Core) lapsed(ctx context.Context, id string, err error) {
	if _, known := c.keeper.unsaved[id]; !known {
		c.keeper.unsaved[id] = conditions.Lapse{Reason: journal.Reason(err), Err: err, Since: c.config.Now()}
	}
	c.keeper.last = id
	c.failed(ctx, err)
}

// failed notes that something about the state directory failed. c.mu is held.
func (c *Core) failed(ctx context.Context, err error) {
	c.config.Metrics.journalFailure()
	if !c.keeper.failing {
		c.keeper.failing = true
		c.config.Log.ErrorContext(ctx, "the state directory fails: works are applied all the same, but nothing is evicted, and an agent that restarts may have to list everything",
			"reason", journal.Reason(err), "error", err)
	}
}

// Save does what is to be done on disk and takes its time. It says when to call
// it again, 0 if there is nothing to come back for. It is called by one
// goroutine at a time.
func (c *Core) Save(ctx context.Context) (next time.Duration) {
	if c.config.Journal == nil {
		return 0
	}
	ok := c.saveEntries(ctx)
	ok = c.saveCursor(ctx) && ok
	next, saved := c.saveReported(ctx)
	if !ok || !saved {
		c.mu.Lock()
		defer c.mu.Unlock()
		wait := min(firstSaveRetry<<min(c.keeper.failures, 10), lastSaveRetry)
		c.keeper.failures++
		return wait + time.Duration(c.config.Random()*float64(wait/10))
	}
	c.recovered(ctx)
	return next
}

// recovered notes that everything is on disk.
func (c *Core) recovered(ctx context.Context) {
	c.mu.Lock()
	c.keeper.failures = 0
	again := c.keeper.failing && len(c.keeper.unsaved) == 0
	var keys []string
	if again {
		c.keeper.failing = false
		keys = c.suspects()
	}
	c.mu.Unlock()
	if again {
		c.config.Log.InfoContext(ctx, "the state directory works again")
	}
	for _, key := range keys {
		c.config.Wake(key, false)
	}
}

// Stop saves what is only saved now and then. Nothing of the Core is used after
// it.
func (c *Core) Stop(ctx context.Context) {
	if c.config.Journal == nil {
		return
	}
	c.mu.Lock()
	if !c.keeper.reported.IsZero() || c.ledger.changed {
		c.keeper.reported = c.config.Now()
	}
	c.mu.Unlock()
	c.saveReported(ctx)
}

// saveEntries removes entries that nobody wants and writes those that could not
// be written before.
func (c *Core) saveEntries(ctx context.Context) (ok bool) {
	c.mu.Lock()
	gone := slices.Sorted(maps.Keys(c.keeper.gone))
	unsaved := slices.Sorted(maps.Keys(c.keeper.unsaved))
	// Begin behind the one that failed last, so that each has its turn.
	if i, found := slices.BinarySearch(unsaved, c.keeper.last); found {
		unsaved = slices.Concat(unsaved[i+1:], unsaved[:i+1])
	}
	c.mu.Unlock()
	failures := 0
	for _, id := range gone {
		if failures < savedAtOnce && !c.removeEntry(ctx, id) {
			failures++
		}
	}
	for _, id := range unsaved {
		if failures < savedAtOnce && !c.putAgain(ctx, id) {
			failures++
		}
	}
	return failures == 0
}

// removeEntry removes the entry of a work that is not held any more.
func (c *Core) removeEntry(ctx context.Context, id string) (ok bool) {
	c.keeper.disk.Lock()
	defer c.keeper.disk.Unlock()
	c.mu.Lock()
	wanted := c.set.Get(id) != nil || !c.keeper.gone[id]
	c.mu.Unlock()
	var err error
	if !wanted {
		err = c.config.Journal.Remove(id)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.failed(ctx, err)
		return false
	}
	delete(c.keeper.gone, id)
	if !wanted {
		delete(c.keeper.unsaved, id)
	}
	return true
}

// putAgain writes an entry that could not be written before, and takes the
// condition off the work.
func (c *Core) putAgain(ctx context.Context, id string) (ok bool) {
	c.keeper.disk.Lock()
	defer c.keeper.disk.Unlock()
	c.mu.Lock()
	w := c.set.Get(id)
	_, still := c.keeper.unsaved[id]
	if w == nil { // whoever dropped it has its entry removed
		delete(c.keeper.unsaved, id)
	}
	c.mu.Unlock()
	if w == nil || !still {
		return true
	}
	if c.put(ctx, w) != nil {
		return false
	}
	c.config.Wake(c.key(w.Name), false)
	return true
}

// saveCursor makes the cursor on disk what it should be. An ack follows when
// everything that it covers is there.
func (c *Core) saveCursor(ctx context.Context) (ok bool) {
	c.mu.Lock()
	drop, target, link := c.keeper.drop, c.keeper.target, c.keeper.link
	ready := target != nil && len(c.keeper.unsaved) == 0
	c.mu.Unlock()
	if drop {
		err := c.config.Journal.DropCursor()
		c.mu.Lock()
		if c.keeper.drop = err != nil; c.keeper.drop {
			c.failed(ctx, err)
		} else {
			c.keeper.onDisk = false
		}
		c.mu.Unlock()
		if err != nil {
			return false
		}
	}
	if !ready {
		return target == nil
	}
	if err := c.config.Journal.Checkpoint(target.Cursor); err != nil {
		c.checkpointFailed(ctx, err)
		return false
	}
	c.mu.Lock()
	if c.keeper.target == target {
		c.keeper.target = nil
	}
	// Meanwhile a broker may have refused the cursor.
	c.keeper.onDisk, c.keeper.drop = true, c.keeper.drop || c.cursor == (codec.Cursor{})
	sync, again := c.link.serial == link, c.keeper.drop
	if sync {
		c.link.ack = target
	}
	c.mu.Unlock()
	if sync {
		c.config.Sync()
	}
	if again {
		c.save(0)
	}
	return true
}

// checkpointFailed finds out whose entries are at fault, so that they are
// written again.
func (c *Core) checkpointFailed(ctx context.Context, err error) {
	var keys []string
	dirty := c.config.Journal.Dirty()
	c.mu.Lock()
	c.failed(ctx, err)
	for _, id := range dirty {
		if w := c.set.Get(id); w == nil {
			c.keeper.gone[id] = true
		} else if _, known := c.keeper.unsaved[id]; !known {
			c.lapsed(ctx, id, err)
			keys = append(keys, c.key(w.Name))
		}
	}
	c.mu.Unlock()
	for _, key := range keys {
		c.config.Wake(key, false)
	}
}

// reserve makes sure that the next process does not use the sequence id that a
// status is about to be sent with: that status may arrive after those of the
// next process. If that fails, the status is sent all the same.
func (c *Core) reserve(id string) {
	if c.config.Journal == nil {
		return
	}
	c.keeper.reserving.Lock()
	defer c.keeper.reserving.Unlock()
	c.mu.Lock()
	limit, needed := c.outbox.ToReserve(id, c.config.Now(), reserveAhead)
	needed = needed && c.connected
	c.mu.Unlock()
	if !needed {
		return
	}
	err := c.config.Journal.Reserve(limit)
	c.mu.Lock()
	c.outbox.Reserved(limit)
	if err != nil {
		c.failed(context.Background(), err)
	}
	c.mu.Unlock()
	if err != nil {
		c.save(firstSaveRetry)
	}
}

// noteReported sees to it that an accepted status is remembered. c.mu is held.
func (c *Core) noteReported() (save bool) {
	if c.config.Journal == nil || !c.keeper.reported.IsZero() {
		return false
	}
	c.keeper.reported = c.config.Now().Add(reportedDelay)
	return true
}

// saveReported notes what the broker accepted, if it is time. next is when it
// will be.
func (c *Core) saveReported(ctx context.Context) (next time.Duration, ok bool) {
	c.mu.Lock()
	if c.keeper.reported.IsZero() {
		c.mu.Unlock()
		return 0, true
	}
	if wait := c.keeper.reported.Sub(c.config.Now()); wait > 0 {
		c.mu.Unlock()
		return wait, true
	}
	sequence, accepted, known := c.outbox.Reported()
	left, changed := c.ledger.take()
	c.keeper.reported = time.Time{}
	c.mu.Unlock()
	var err error
	if known { // else what is on disk is no more wrong than it was
		err = c.config.Journal.SaveReported(journal.Reported{Sequence: sequence, Accepted: accepted})
	}
	if err == nil && changed {
		err = c.config.Journal.SaveLeft(left)
	}
	if err == nil {
		return 0, true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ledger.changed = c.ledger.changed || changed
	c.failed(ctx, err)
	c.noteReported()
	return 0, false
}
