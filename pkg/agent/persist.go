package agent

import (
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

// Journal stores the desired state across restarts. A *journal.Journal implements it and documents its methods.
type Journal interface {
	Load(b journal.Binding, put func(codec.Event) error, removed func(id string)) (journal.LoadResult, error)
	Put(e codec.Event) error
	Remove(id string) error
	Checkpoint(c codec.Cursor) error
	Reserve(sequence string) error
	Note(r journal.Reported, left map[string]map[string]string) error
	NeedsCompaction() bool
	Compact(c journal.Content) error
}

const (
	// Failures of the state directory are retried after waits that begin at firstSaveRetry and double.
	firstSaveRetry = time.Second
	lastSaveRetry  = time.Minute
	// reportedDelay collects accepted statuses before they are written.
	reportedDelay = 30 * time.Second
	// reserveAhead is the time for which sequence ids are reserved at once.
	reserveAhead = time.Minute
)

// persister writes the journal. It is the only part that knows what is not on disk yet.
type persister struct {
	*works
	subscription *subscriptionState

	// disk is held while a work is written or removed and the result is recorded, and while the log is compacted.
	// No entry on disk is then older than the held work. disk is locked before works.mu. works.mu guards all fields
	// below and is never held during disk operations.
	disk sync.Mutex

	// unsaved has the works that differ from disk, by id. gone has the works to remove.
	unsaved map[string]conditions.PersistError
	gone    map[string]bool
	// drop: the cursor on disk, if there is one, must be removed.
	drop bool
	// target is the ack to store and then to send on the subscription with this serial.
	target *codec.Ack
	serial uint64

	// failing: a write failed, so the log must be compacted. failures counts consecutive incomplete Saves.
	failing  bool
	failures int

	// reserving is held while sequence ids are reserved.
	reserving sync.Mutex

	// reported is when accepted statuses are written; zero if there are none.
	reported time.Time
	written  appliedHashes
}

func newPersister(w *works, l *subscriptionState) *persister {
	return &persister{works: w, subscription: l, unsaved: map[string]conditions.PersistError{}, gone: map[string]bool{}}
}

// load reads the state of an earlier process.
func (k *persister) load() error {
	var works []*desired.Work
	latest := map[string]*desired.Work{}
	s, err := k.config.Journal.Load(journal.Binding{
		ClusterUID: k.clusterUID, Cluster: k.config.Cluster, HubHash: k.config.HubHash, AgentID: k.config.AgentID,
	}, func(e codec.Event) error {
		w, err := decodeEntry(e, k.config.Cluster)
		if err == nil {
			works, latest[w.ResourceID] = append(works, w), w
		}
		return err
	}, func(id string) { delete(latest, id) })
	if err != nil {
		return err
	}
	k.mu.Lock()
	for _, w := range works {
		if latest[w.ResourceID] != w {
			continue
		}
		if lost := k.set.Load(w); lost != nil {
			k.gone[lost.ResourceID] = true
		}
	}
	k.subscription.move(s.Cursor)
	maps.DeleteFunc(s.Reported.Accepted, func(id, _ string) bool { return k.set.Get(id) == nil })
	err = k.outbox.Restore(s.Reported.Sequence, s.Reserved, s.Reported.Accepted)
	names := k.set.Names()
	k.written.restore(s.Left, func(key string) bool {
		name, ours := k.workName(key)
		return ours && slices.Contains(names, name)
	})
	k.mu.Unlock()
	if err != nil {
		k.config.Log.Error("the journal has a sequence id that no newer one can exceed", "error", err)
	}
	if len(latest) > 0 || s.Damaged > 0 {
		k.config.Log.Info("works of an earlier process", "works", len(latest), "damaged", s.Damaged, "cursor", s.Cursor.String())
	}
	if err := k.renew(); err != nil {
		k.saveFailed(err)
	}
	k.trackProven()
	for _, name := range names {
		k.config.Wake(k.keyOf(name), true)
	}
	k.save(0)
	return nil
}

// put writes a work before it is acted upon. A failure does not keep the work from being applied; the work's
// condition reports it. k.disk is held, k.mu is not.
func (k *persister) put(w *desired.Work) {
	e, err := encodeEntry(w, k.config.Now())
	if err == nil {
		err = k.config.Journal.Put(e)
	}
	k.mu.Lock()
	delete(k.gone, w.ResourceID)
	if _, known := k.unsaved[w.ResourceID]; err == nil {
		delete(k.unsaved, w.ResourceID)
	} else if !known {
		k.unsaved[w.ResourceID] = conditions.PersistError{Reason: journal.Reason(err), Err: err, Since: k.config.Now()}
	}
	k.mu.Unlock()
	if err != nil {
		k.saveFailed(err)
		k.save(firstSaveRetry)
	}
}

// saveFailed records and logs a failure of the state directory.
func (k *persister) saveFailed(err error) {
	k.config.Metrics.journalFailure()
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.failing {
		k.failing = true
		k.config.Log.Error("the state directory fails: works are applied all the same, but nothing is evicted, and an agent that restarts may have to list everything",
			"reason", journal.Reason(err), "error", err)
	}
}

// saveAll performs the pending writes. next is when to call it again, 0 if nothing is pending. recovered: the
// directory failed until now.
func (k *persister) saveAll() (next time.Duration, recovered bool) {
	err := errors.Join(k.renew(), k.removeGone(), k.saveCursor())
	next, notesErr := k.saveNotes()
	if err = errors.Join(err, notesErr); err != nil {
		k.saveFailed(err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		wait := min(firstSaveRetry<<min(k.failures, 10), lastSaveRetry)
		k.failures++
		return wait + time.Duration(k.config.Random()*float64(wait/10)), false
	}
	k.failures = 0
	if recovered = k.failing && len(k.unsaved) == 0; recovered {
		k.failing = false
		k.config.Log.Info("the state directory works again")
	}
	return next, recovered
}

// stop saves the state that is saved only periodically.
func (k *persister) stop() {
	k.mu.Lock()
	k.reported = k.config.Now()
	k.mu.Unlock()
	if _, err := k.saveNotes(); err != nil {
		k.saveFailed(err)
	}
}

// renew compacts the log if that is due: it starts again with the held works. Then all works on disk are up to
// date.
func (k *persister) renew() error {
	k.disk.Lock()
	defer k.disk.Unlock()
	if !k.config.Journal.NeedsCompaction() {
		return nil
	}
	k.mu.Lock()
	works, left := k.set.All(), maps.Clone(k.written.objects)
	sequence, accepted := k.outbox.Reported()
	k.mu.Unlock()
	err := k.config.Journal.Compact(journal.Content{
		Works: func(yield func(codec.Event, error) bool) {
			for more := true; more && len(works) > 0; works = works[1:] {
				more = yield(encodeEntry(works[0], k.config.Now()))
			}
		},
		Reported: journal.Reported{Sequence: sequence, Accepted: accepted}, Left: left,
	})
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for id := range k.unsaved { // the condition PersistFailed of the work must be removed
		if w := k.set.Get(id); w != nil {
			k.config.Wake(k.keyOf(w.Name), false)
		}
	}
	clear(k.unsaved)
	clear(k.gone)
	return nil
}

// removeGone removes works from disk that are no longer held.
func (k *persister) removeGone() error {
	k.disk.Lock()
	defer k.disk.Unlock()
	k.mu.Lock()
	gone := sorted(k.gone)
	k.mu.Unlock()
	for _, id := range gone {
		if err := k.config.Journal.Remove(id); err != nil {
			return err // works removed before the error are removed again later
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, id := range gone {
		delete(k.gone, id)
		delete(k.unsaved, id)
	}
	return nil
}

// saveCursor updates the cursor on disk. An ack is sent after everything that it covers is on disk.
func (k *persister) saveCursor() error {
	k.mu.Lock()
	drop, target, serial := k.drop, k.target, k.serial
	k.drop = false
	if len(k.unsaved)+len(k.gone) > 0 {
		target = nil
	}
	k.mu.Unlock()
	var c codec.Cursor
	if target != nil {
		c = target.Cursor
	} else if !drop {
		return nil
	}
	err := k.config.Journal.Checkpoint(c)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		k.drop = k.drop || drop
		return err
	}
	if target == nil {
		return nil
	}
	if k.target == target {
		k.target = nil
	}
	if k.subscription.acknowledge(serial, target) {
		k.config.Sync(0)
	}
	if k.drop = k.drop || k.subscription.cursor == (codec.Cursor{}); k.drop { // a broker has refused it in the meantime
		k.save(0)
	}
	return nil
}

// reserve reserves the sequence id of a status before it is sent: the next process then uses higher ones.
// Otherwise the status could arrive after those of the next process. If the reservation fails, the status is
// sent nevertheless.
func (k *persister) reserve(id string) {
	if k.config.Journal == nil {
		return
	}
	k.reserving.Lock()
	defer k.reserving.Unlock()
	k.mu.Lock()
	limit, needed := k.outbox.ToReserve(id, k.config.Now(), reserveAhead)
	needed = needed && k.connected
	k.mu.Unlock()
	if !needed {
		return
	}
	err := k.config.Journal.Reserve(limit)
	k.mu.Lock()
	k.outbox.Reserved(limit)
	k.mu.Unlock()
	if err != nil {
		k.saveFailed(err)
		k.save(firstSaveRetry)
	}
}

// noteReported schedules the write of an accepted status. k.mu is held.
func (k *persister) noteReported() (save bool) {
	if k.config.Journal == nil || !k.reported.IsZero() {
		return false
	}
	k.reported = k.config.Now().Add(reportedDelay)
	return true
}

// saveNotes writes the accepted statuses and the hashes of objects, if that is due. next is the time until it
// is due. After a failure the log is compacted and contains them.
func (k *persister) saveNotes() (next time.Duration, err error) {
	k.mu.Lock()
	due, now := k.reported, k.config.Now()
	if due.IsZero() || due.After(now) {
		k.mu.Unlock()
		return max(0, due.Sub(now)), nil
	}
	sequence, accepted := k.outbox.Reported()
	left := k.written.take()
	k.reported = time.Time{}
	k.mu.Unlock()
	return 0, k.config.Journal.Note(journal.Reported{Sequence: sequence, Accepted: accepted}, left)
}

// noteUntil sends an ack on the subscription as soon as everything that it covers is on disk.
func (k *persister) noteUntil(a *codec.Ack) { k.target, k.serial = a, k.subscription.serial }

// refused records that the broker cannot use the cursor on disk, if there is one.
func (k *persister) refused() {
	k.target, k.drop = nil, true
}

// awaited returns the ack that is waiting for the disk on this subscription; nil if there is none.
func (k *persister) awaited() *codec.Ack {
	if k.serial != k.subscription.serial {
		return nil
	}
	return k.target
}

// degraded reports whether held works may be lost in a restart.
func (k *persister) degraded() bool { return k.failing || len(k.unsaved) > 0 }

// discard schedules the removal of the entry of a work that is no longer held.
func (k *persister) discard(id string) {
	if k.config.Journal != nil {
		k.gone[id] = true
	}
}

// forget drops a work, its pending reports and its journal entry.
func (k *persister) forget(id string) {
	k.set.Drop(id)
	k.outbox.Remove(id)
	k.discard(id)
}
