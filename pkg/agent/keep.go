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
	Load(b journal.Binding, put func(codec.Event) error, removed func(id string)) (journal.State, error)
	Put(e codec.Event) error
	Remove(id string) error
	Checkpoint(c codec.Cursor) error
	Reserve(sequence string) error
	SaveReported(r journal.Reported) error
	SaveLeft(left map[string]map[string]string) error
	Due() bool
	Renew(c journal.Content) error
}

const (
	// Failures of the state directory are tried again after waits that begin at
	// firstSaveRetry and double.
	firstSaveRetry = time.Second
	lastSaveRetry  = time.Minute
	// reportedDelay is how long accepted statuses wait to be noted together.
	reportedDelay = 30 * time.Second
	// reserveAhead is for how long sequence ids are reserved at a time.
	reserveAhead = time.Minute
)

// keeper is what is still to be done on disk: it alone knows what is not there.
// Guarded by Core.mu, but for the locks.
type keeper struct {
	// disk is locked while a work is written or removed and what follows from that is
	// noted, so that no record is older than what is held, and while the log is
	// renewed from that. It is locked before Core.mu, which never is while the disk
	// works.
	disk sync.Mutex

	// unsaved are works that are not on disk as they should be, by id; gone are
	// works that are to be removed.
	unsaved map[string]conditions.Lapse
	gone    map[string]bool
	// onDisk: there is a cursor on disk. drop: it must go.
	onDisk, drop bool
	// target is what is to be stored, and acknowledged then on this link.
	target *codec.Ack
	link   uint64

	// failing: something failed, so the log is to be renewed; failures counts Saves in
	// a row that did not get everything done.
	failing  bool
	failures int

	// reserving is locked while sequence ids are reserved.
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

// load reads what an earlier process left.
func (c *Core) load() error {
	var works []*desired.Work
	latest := map[string]*desired.Work{}
	s, err := c.config.Journal.Load(journal.Binding{
		ClusterUID: c.clusterUID, Cluster: c.config.Cluster, HubHash: c.config.HubHash, AgentID: c.config.AgentID,
	}, func(e codec.Event) error {
		w, err := c.readEntry(e)
		if err == nil {
			works, latest[w.ResourceID] = append(works, w), w
		}
		return err
	}, func(id string) { delete(latest, id) })
	if err != nil {
		return err
	}
	c.mu.Lock()
	for _, w := range works {
		if latest[w.ResourceID] != w {
			continue
		}
		if lost := c.set.Load(w); lost != nil {
			c.keeper.gone[lost.ResourceID] = true
		}
	}
	c.cursor, c.keeper.onDisk = s.Cursor, s.Cursor != (codec.Cursor{})
	maps.DeleteFunc(s.Reported.Accepted, func(id, _ string) bool { return c.set.Get(id) == nil })
	err = c.outbox.Restore(s.Reported.Sequence, s.Reserved, s.Reported.Accepted)
	names := c.set.Names()
	c.written.restore(s.Left, func(key string) bool {
		name, ours := c.workName(key)
		return ours && slices.Contains(names, name)
	})
	c.mu.Unlock()
	if err != nil {
		c.config.Log.Error("the journal has a sequence id that no newer one can follow", "error", err)
	}
	if len(latest) > 0 || s.Damaged > 0 {
		c.config.Log.Info("works of an earlier process", "works", len(latest), "damaged", s.Damaged, "cursor", s.Cursor.String())
	}
	if err := c.renew(); err != nil {
		c.saveFailed(err)
	}
	for _, name := range names {
		c.config.Wake(c.key(name), true)
	}
	c.save(0)
	return nil
}

// readEntry reads a work that was put.
func (c *Core) readEntry(e codec.Event) (*desired.Work, error) {
	w, err := decodeEntry(e)
	if err == nil && w.Cluster != c.config.Cluster {
		err = errors.New("the work is of cluster " + w.Cluster)
	}
	return w, err
}

// put writes a work before it is acted upon. A failure does not keep the work from
// being applied: it is told in the work's condition. c.keeper.disk is locked, c.mu
// is not.
func (c *Core) put(w *desired.Work) {
	e, err := encodeEntry(w, c.config.Now())
	if err == nil {
		err = c.config.Journal.Put(e)
	}
	c.mu.Lock()
	delete(c.keeper.gone, w.ResourceID)
	if _, known := c.keeper.unsaved[w.ResourceID]; err == nil {
		delete(c.keeper.unsaved, w.ResourceID)
	} else if !known {
		c.keeper.unsaved[w.ResourceID] = conditions.Lapse{Reason: journal.Reason(err), Err: err, Since: c.config.Now()}
	}
	c.mu.Unlock()
	if err != nil {
		c.saveFailed(err)
		c.save(firstSaveRetry)
	}
}

// saveFailed notes that something about the state directory failed.
func (c *Core) saveFailed(err error) {
	c.config.Metrics.journalFailure()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.keeper.failing {
		c.keeper.failing = true
		c.config.Log.Error("the state directory fails: works are applied all the same, but nothing is evicted, and an agent that restarts may have to list everything",
			"reason", journal.Reason(err), "error", err)
	}
}

// Save does what is to be done on disk. It says when to call it next, 0 if there is
// nothing to come back for. It is called by one goroutine at a time.
func (c *Core) Save(context.Context) (next time.Duration) {
	if c.config.Journal == nil {
		return 0
	}
	err := errors.Join(c.renew(), c.removeGone(), c.saveCursor())
	next, reportedErr := c.saveReported()
	if err = errors.Join(err, reportedErr); err == nil {
		c.recovered()
		return next
	}
	c.saveFailed(err)
	c.mu.Lock()
	defer c.mu.Unlock()
	wait := min(firstSaveRetry<<min(c.keeper.failures, 10), lastSaveRetry)
	c.keeper.failures++
	return wait + time.Duration(c.config.Random()*float64(wait/10))
}

// recovered notes that everything is on disk.
func (c *Core) recovered() {
	var keys []string
	c.mu.Lock()
	if c.keeper.failures = 0; c.keeper.failing && len(c.keeper.unsaved) == 0 {
		c.keeper.failing = false
		c.config.Log.Info("the state directory works again")
		keys = c.suspects()
	}
	c.mu.Unlock()
	for _, key := range keys {
		c.config.Wake(key, false)
	}
}

// Stop saves what is only saved now and then. Nothing of the Core is used after
// it.
func (c *Core) Stop(context.Context) {
	if c.config.Journal == nil {
		return
	}
	c.mu.Lock()
	if !c.keeper.reported.IsZero() || c.written.changed {
		c.keeper.reported = c.config.Now()
	}
	c.mu.Unlock()
	if _, err := c.saveReported(); err != nil {
		c.saveFailed(err)
	}
}

// renew has the log begin anew with what is held, where that is due. Then all works
// are on disk as they should be.
func (c *Core) renew() error {
	c.keeper.disk.Lock()
	defer c.keeper.disk.Unlock()
	if !c.config.Journal.Due() {
		return nil
	}
	c.mu.Lock()
	works, left := c.set.All(), maps.Clone(c.written.objects)
	sequence, accepted, _ := c.outbox.Reported()
	c.mu.Unlock()
	err := c.config.Journal.Renew(journal.Content{
		Works: func(yield func(codec.Event, error) bool) {
			for more := true; more && len(works) > 0; works = works[1:] {
				more = yield(encodeEntry(works[0], c.config.Now()))
			}
		},
		Reported: journal.Reported{Sequence: sequence, Accepted: accepted}, Left: left,
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.keeper.unsaved { // its condition is to go
		if w := c.set.Get(id); w != nil {
			c.config.Wake(c.key(w.Name), false)
		}
	}
	clear(c.keeper.unsaved)
	clear(c.keeper.gone)
	return nil
}

// removeGone removes works from disk that are not held any more.
func (c *Core) removeGone() error {
	c.keeper.disk.Lock()
	defer c.keeper.disk.Unlock()
	c.mu.Lock()
	gone := sorted(c.keeper.gone)
	c.mu.Unlock()
	for _, id := range gone {
		if err := c.config.Journal.Remove(id); err != nil {
			return err
		}
		c.mu.Lock()
		delete(c.keeper.gone, id)
		delete(c.keeper.unsaved, id)
		c.mu.Unlock()
	}
	return nil
}

// saveCursor makes the cursor on disk what it should be. An ack follows when
// everything that it covers is there.
func (c *Core) saveCursor() error {
	c.mu.Lock()
	drop, target, link := c.keeper.drop, c.keeper.target, c.keeper.link
	ready := target != nil && len(c.keeper.unsaved)+len(c.keeper.gone) == 0
	c.mu.Unlock()
	if drop {
		if err := c.config.Journal.Checkpoint(codec.Cursor{}); err != nil {
			return err
		}
		c.mu.Lock()
		c.keeper.drop, c.keeper.onDisk = false, false
		c.mu.Unlock()
	}
	if !ready {
		return nil
	}
	if err := c.config.Journal.Checkpoint(target.Cursor); err != nil {
		return err
	}
	c.mu.Lock()
	if c.keeper.target == target {
		c.keeper.target = nil
	}
	// Meanwhile a broker may have refused the cursor.
	c.keeper.onDisk, c.keeper.drop = true, c.keeper.drop || c.cursor == (codec.Cursor{})
	sync, refused := c.link.serial == link, c.keeper.drop
	if sync {
		c.link.ack = target
	}
	c.mu.Unlock()
	if sync {
		c.config.Sync()
	}
	if refused {
		c.save(0)
	}
	return nil
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
	c.mu.Unlock()
	if err != nil {
		c.saveFailed(err)
		c.save(firstSaveRetry)
	}
}

// noteReported sees to it that an accepted status is remembered. c.mu is locked.
func (c *Core) noteReported() (save bool) {
	if c.config.Journal == nil || !c.keeper.reported.IsZero() {
		return false
	}
	c.keeper.reported = c.config.Now().Add(reportedDelay)
	return true
}

// saveReported notes what the broker accepted, and how objects were left, if it is
// time. next is how long it will be until then.
func (c *Core) saveReported() (next time.Duration, err error) {
	c.mu.Lock()
	due, now := c.keeper.reported, c.config.Now()
	if due.IsZero() || due.After(now) {
		c.mu.Unlock()
		return max(0, due.Sub(now)), nil
	}
	sequence, accepted, known := c.outbox.Reported()
	left, changed := maps.Clone(c.written.objects), c.written.changed
	c.keeper.reported, c.written.changed = time.Time{}, false
	c.mu.Unlock()
	if known { // else what is on disk is no more wrong than it was
		err = c.config.Journal.SaveReported(journal.Reported{Sequence: sequence, Accepted: accepted})
	}
	if err == nil && changed {
		err = c.config.Journal.SaveLeft(left)
	}
	if err != nil {
		c.mu.Lock()
		c.written.changed = c.written.changed || changed
		c.noteReported()
		c.mu.Unlock()
	}
	return 0, err
}
