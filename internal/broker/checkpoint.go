package broker

import (
	"maps"
	"slices"
	"time"

	"github.com/hawser-io/hawser/internal/broker/route"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

const (
	// partialPause is how often a party is told how far it is while there is
	// always something left to send.
	partialPause = 5 * time.Second
	// orphanPace is how many bytes of orphans are repeated to one agent per
	// second: checkpoints that carry many of them are rarer.
	orphanPace = 256 << 10
)

// syncState is how far a Hawser party is. It is empty for a stock one, which
// never hears of it. The lock of its subscription guards it.
type syncState struct {
	progress route.Progress
	// told are the last complete checkpoints of an agent, which it may yet
	// acknowledge; next is the place of the next one.
	told [4]toldDigest
	next int
	// acked is the revision up to which an agent has confirmed, proof what the
	// last confirmation showed; complained says that the log has it.
	acked      uint64
	proof      proof
	complained bool

	// lists is how many lists were compared, listed whether one was an agent's.
	lists  uint64
	listed bool
	// orphans are what the last list of an agent had and no record explains, with
	// the versions that it listed; give gives back the room that they take.
	// explained are those of which there is a record by now that was not sent yet.
	orphans, explained map[string]int64
	give               func()
	// ahead are the records of which the last list had a newer version.
	ahead map[string]aheadWork
	// recheck: of some works that the agent has newer, the records may have turned
	// out to be the truth.
	recheck bool
}

type toldDigest struct {
	revision uint64
	digest   codec.Digest
}

// aheadWork is a record of which an agent holds a newer version.
type aheadWork struct {
	owner    string
	revision uint64
	flags    route.Flags
	listed   int64 // version that the agent listed
}

// mark is a checkpoint to be sent.
type mark struct {
	revision uint64
	// complete: the mailbox was empty, and every change up to position had been
	// put into it before.
	complete bool
	position uint64
}

// settled reports whether nothing is missing in the mailbox that the party
// lacks. The caller holds the lock.
func (s *subscription) settled() bool { return !s.filling && len(s.requests) == 0 }

// completeMark returns the checkpoint that is due when nothing is left to send.
// position is that of the hub before the lock was taken.
func (s *subscription) completeMark(now time.Time, position uint64) (mark, bool) {
	if s.mail.Len() > 0 || len(s.rests.later) > 0 || !s.settled() {
		return mark{}, false
	}
	revision, ok := s.sync.progress.Complete(now, position)
	if !ok {
		return mark{}, false
	}
	// What there is to tell from now on is for the next one.
	s.sync.progress.Done()
	return mark{revision: revision, complete: true, position: position}, true
}

// partialMark returns the checkpoint that is due while something is left to
// send.
func (s *subscription) partialMark(now time.Time, position uint64) (mark, bool) {
	if !s.sync.progress.MayBePartial(now) {
		return mark{}, false
	}
	if oldest, ok := s.oldest(); ok && s.settled() {
		if revision, ok := s.sync.progress.Partial(now, position, oldest); ok {
			return mark{revision: revision}, true
		}
	}
	s.sync.progress.Postpone(now.Add(partialPause))
	return mark{}, false
}

// oldest returns a revision below which every record was sent; false: nothing
// is left to send. Entries that rest were taken out and not sent.
func (s *subscription) oldest() (revision uint64, ok bool) {
	revision, ok = s.mail.Oldest()
	for _, r := range s.rests.later {
		if !ok || r.Revision < revision {
			revision, ok = r.Revision, true
		}
	}
	return revision, ok
}

// begin says that from now on the mailbox holds all that the party lacks, but
// for what a list said that was just compared.
func (s *subscription) begin(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beginLocked(now)
}

func (s *subscription) beginLocked(now time.Time) {
	if s.hello.Protocol == 0 {
		return
	}
	told := uint64(0)
	if s.cursor != nil {
		told = s.cursor.Revision
	}
	s.sync.progress.Begin(told, now.Add(partialPause))
}

// compared notes that a list was compared: what it lacks is in the mailbox.
func (s *subscription) compared(now time.Time, l *list) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beginLocked(now)
	if !l.silent {
		s.sync.lists++
		s.sync.listed = true
	}
	s.sync.progress.Touch()
}

// keep remembers the orphans of a list, in place of those of the one before.
// give is called when they are no longer needed; both may be nil.
func (y *syncState) keep(orphans map[string]int64, give func()) {
	if y.give != nil {
		y.give()
	}
	y.orphans, y.explained, y.give = orphans, nil, give
}

// explain notes that there is a record with this id.
func (y *syncState) explain(id string) {
	version, orphan := y.orphans[id]
	if !orphan {
		return
	}
	delete(y.orphans, id)
	if y.explained == nil {
		y.explained = map[string]int64{}
	}
	y.explained[id] = version
}

// touch says that there is something to tell that is not in the mailbox.
func (s *subscription) touch() {
	s.mu.Lock()
	s.sync.progress.Touch()
	s.mu.Unlock()
	s.signal()
}

// recheck says that other sources than before have compared what they own on
// the agent's cluster, or have published a deletion there again.
func (s *subscription) recheck() {
	s.mu.Lock()
	s.sync.recheck = true
	s.sync.progress.Touch()
	s.mu.Unlock()
	s.signal()
}

// overtaken takes note that a record is about to be sent that the agent's last list
// lacked. It reports whether the agent listed a newer version of it, and what that
// is then.
func (s *subscription) overtaken(r *store.Record) (w aheadWork, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	listed, explained := s.sync.explained[r.ResourceID]
	if !explained {
		return w, false
	}
	delete(s.sync.explained, r.ResourceID)
	w = aheadWork{owner: r.Owner, revision: r.SpecRevision, listed: listed}
	if r.State == store.Tombstone {
		w.flags = route.Deletion
	}
	return w, r.Version != 0 && !r.SpecSupersedes && r.Version < listed
}

// setAhead lets a record wait until its source has made sure of it.
func (s *subscription) setAhead(id string, w aheadWork) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sync.ahead == nil {
		s.sync.ahead = map[string]aheadWork{}
	}
	s.sync.ahead[id] = w
}

// aheadNow returns the works that the agent has newer.
func (s *subscription) aheadNow() map[string]aheadWork {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.sync.ahead)
}

// noLongerAhead takes out one of them, if it is there still.
func (s *subscription) noLongerAhead(id string) (w aheadWork, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w, ok = s.sync.ahead[id]
	delete(s.sync.ahead, id)
	return w, ok
}

// caughtUp notes that a version is sent of which the agent may have a newer
// one; true: it had, and this one is no older.
func (s *subscription) caughtUp(id string, version int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	w, ok := s.sync.ahead[id]
	if !ok || version < w.listed {
		return false
	}
	delete(s.sync.ahead, id)
	return true
}

// undeliverable says that a record cannot be sent, and was not.
func (s *subscription) undeliverable(revision uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sync.progress.Block(revision)
}

// await lets the next complete checkpoint wait for the router.
func (s *subscription) await(position uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sync.progress.Touch()
	s.sync.progress.Await(position)
}

// checkpoint tells a party how far it is.
func (b *Broker) checkpoint(s *subscription, out transport.Stream, m mark) error {
	head := b.store.Head()
	c := codec.Checkpoint{Cursor: codec.Cursor{Epoch: head.Epoch, Term: head.Term, Revision: m.revision}}
	if s.part == codec.Spec {
		cluster := b.store.ClusterHead(s.scope.DataType, s.scope.Cluster)
		if m.complete && cluster.SpecRevision > m.position {
			// The digest is of more than was sent.
			s.await(cluster.SpecRevision)
			b.hub.await(s, cluster.SpecRevision)
			return nil
		}
		if m.complete {
			c.Digest = &cluster.Digest
		}
		c.HighestSequenceID = cluster.Sequence
		c.ComparedSources = b.comparisons.at(place{s.scope.DataType, s.scope.Cluster})
	}
	s.describe(&c)
	e, err := codec.NewCheckpoint(b.syncParams(s), c)
	if err != nil {
		return internalError(err)
	}
	event, err := codec.Marshal(e)
	if err != nil {
		return internalError(err)
	}
	s.tell(b.cfg.Now(), b.cfg.Checkpoint, m, &c)
	b.metrics.checkpoint(s.part)
	return out.Send(event)
}

// syncParams is the envelope of a sync event to a party.
func (b *Broker) syncParams(s *subscription) codec.SyncParams {
	return codec.SyncParams{
		ID: b.cfg.NewID(), Time: b.cfg.Now(), Source: brokerSource,
		Cluster: s.scope.Cluster, Owner: s.scope.Owner,
	}
}

// describe adds what the subscription itself knows.
func (s *subscription) describe(c *codec.Checkpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.part == codec.Status {
		c.AnsweredLists = s.sync.lists
		return
	}
	if s.sync.progress.Blocked() {
		c.Digest = nil // some of it was not sent
	}
	c.Listed = s.sync.listed
	c.Orphans = slices.Sorted(maps.Keys(s.sync.orphans))
}

// tell notes that a checkpoint goes out. It does so before that: the answer may
// be faster than the sending stream.
func (s *subscription) tell(now time.Time, pause time.Duration, m mark, c *codec.Checkpoint) {
	size := 0
	for _, id := range c.Orphans {
		size += len(id)
	}
	pause += time.Duration(size) * time.Second / orphanPace
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sync.progress.Told(m.revision, now.Add(pause), now.Add(max(pause, partialPause)))
	if c.Digest != nil {
		s.sync.told[s.sync.next] = toldDigest{m.revision, *c.Digest}
		s.sync.next = (s.sync.next + 1) % len(s.sync.told)
	}
}
