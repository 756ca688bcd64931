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

// Journal is where what is wanted outlives the process; a *journal.Journal is
// one. What its methods promise is said there.
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
	// Failures of the state directory are tried again after waits that begin at
	// firstSaveRetry and double.
	firstSaveRetry = time.Second
	lastSaveRetry  = time.Minute
	// reportedDelay is how long accepted statuses wait to be noted together.
	reportedDelay = 30 * time.Second
	// reserveAhead is for how long sequence ids are reserved at a time.
	reserveAhead = time.Minute
)

// persister does what is to be done on disk, and it alone knows what is not there.
type persister struct {
	*works
	subscription *subscriptionState

	// disk is locked while a work is written or removed and what follows from that is
	// noted, so that no record is older than what is held, and while the log is
	// renewed from that. It is locked before works.mu, which never is while the disk
	// works, and which guards all that follows.
	disk sync.Mutex

	// unsaved are works that are not on disk as they should be, by id; gone are
	// works that are to be removed.
	unsaved map[string]conditions.PersistError
	gone    map[string]bool
	// drop: the cursor on disk, if there is one, must go.
	drop bool
	// target is what is to be stored, and acknowledged then on the subscription with
	// this serial.
	target *codec.Ack
	serial uint64

	// failing: something failed, so the log is to be renewed; failures counts Saves in
	// a row that did not get everything done.
	failing  bool
	failures int

	// reserving is locked while sequence ids are reserved.
	reserving sync.Mutex

	// reported is when accepted statuses are to be noted; zero if there are none.
	reported time.Time
	written  appliedHashes
}

func newPersister(w *works, l *subscriptionState) *persister {
	return &persister{works: w, subscription: l, unsaved: map[string]conditions.PersistError{}, gone: map[string]bool{}}
}

// load reads what an earlier process left.
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
		k.config.Log.Error("the journal has a sequence id that no newer one can follow", "error", err)
	}
	if len(latest) > 0 || s.Damaged > 0 {
		k.config.Log.Info("works of an earlier process", "works", len(latest), "damaged", s.Damaged, "cursor", s.Cursor.String())
	}
	if err := k.renew(); err != nil {
		k.saveFailed(err)
	}
	for _, name := range names {
		k.config.Wake(k.keyOf(name), true)
	}
	k.save(0)
	return nil
}

// put writes a work before it is acted upon. A failure does not keep the work from
// being applied: it is told in the work's condition. k.disk is locked, k.mu
// is not.
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

// saveFailed notes that something about the state directory failed.
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

// saveAll does what is to be done on disk. next is when to call it again, 0 if there is
// nothing to come back for; recovered says that the directory failed until now.
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

// stop saves what is only saved now and then.
func (k *persister) stop() {
	k.mu.Lock()
	k.reported = k.config.Now()
	k.mu.Unlock()
	if _, err := k.saveNotes(); err != nil {
		k.saveFailed(err)
	}
}

// renew has the log begin anew with what is held, where that is due. Then all works
// are on disk as they should be.
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
	for id := range k.unsaved { // its condition is to go
		if w := k.set.Get(id); w != nil {
			k.config.Wake(k.keyOf(w.Name), false)
		}
	}
	clear(k.unsaved)
	clear(k.gone)
	return nil
}

// removeGone removes works from disk that are not held any more.
func (k *persister) removeGone() error {
	k.disk.Lock()
	defer k.disk.Unlock()
	k.mu.Lock()
	gone := sorted(k.gone)
	k.mu.Unlock()
	for _, id := range gone {
		if err := k.config.Journal.Remove(id); err != nil {
			return err // what was removed before is removed once more
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

// saveCursor makes the cursor on disk what it should be. An ack follows when
// everything that it covers is there.
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
	if k.drop = k.drop || k.subscription.cursor == (codec.Cursor{}); k.drop { // a broker refused it meanwhile
		k.save(0)
	}
	return nil
}

// reserve makes sure that the next process does not use the sequence id that a
// status is about to be sent with: that status may arrive after those of the
// next process. If that fails, the status is sent all the same.
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

// noteReported sees to it that an accepted status is remembered. k.mu is locked.
func (k *persister) noteReported() (save bool) {
	if k.config.Journal == nil || !k.reported.IsZero() {
		return false
	}
	k.reported = k.config.Now().Add(reportedDelay)
	return true
}

// saveNotes notes what the broker accepted, and how objects were left, if it is
// time. next is how long it will be until then. What fails is in the log that is begun
// anew then.
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

// noteUntil has an ack sent on the subscription when what it covers is on disk.
func (k *persister) noteUntil(a *codec.Ack) { k.target, k.serial = a, k.subscription.serial }

// refused: the cursor on disk, if there is one, is of no use to the broker.
func (k *persister) refused() {
	k.target, k.drop = nil, true
}

// awaited is the ack that is to be sent on this subscription; nil if there is none.
func (k *persister) awaited() *codec.Ack {
	if k.serial != k.subscription.serial {
		return nil
	}
	return k.target
}

// degraded: what is held may not survive a restart.
func (k *persister) degraded() bool { return k.failing || len(k.unsaved) > 0 }

// discard has the entry of a work removed that is not held any more.
func (k *persister) discard(id string) {
	if k.config.Journal != nil {
		k.gone[id] = true
	}
}

// forget drops a work, and what was to be reported and kept of it.
func (k *persister) forget(id string) {
	k.set.Drop(id)
	k.outbox.Remove(id)
	k.discard(id)
}
