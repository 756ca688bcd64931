package delivery

import (
	"context"
	"slices"
	"time"

	"github.com/hawser-io/hawser/internal/broker/deliveryqueue"
	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/pkg/codec"
)

const (
	// partialPause is how often a party is told how far it is while there is always something
	// left to send.
	partialPause = 5 * time.Second
	// orphanReportPace is how many bytes of unexplained ids are repeated to one agent per
	// second: checkpoints that carry many of them are rarer.
	orphanReportPace = 256 << 10
)

// SyncResult is what the last ack of an agent's subscription showed.
type SyncResult uint8

// The proofs.
const (
	Unproven SyncResult = iota // nothing was acknowledged, as by every stock agent
	InSync                     // it has exactly the works of the store
	Differs                    // it has something else, also after it listed it
)

// syncState is how far a Hawser party is. It is empty for a stock one, which never hears of
// it. The lock of its subscription guards it.
type syncState struct {
	progress deliveryqueue.Progress
	// sentDigests are the last complete checkpoints of an agent, oldest first, which it may yet
	// acknowledge.
	sentDigests []sentDigest
	// acked is the revision up to which an agent has confirmed, proof what the last
	// confirmation showed; complained says that the log has it.
	acked          uint64
	proof          SyncResult
	mismatchLogged bool

	// answered is how many lists were compared, listed whether one was an agent's.
	answered uint64
	listed   bool
	// recheck: of some works of which the agent has newer versions, the records may have
	// turned out to be the truth.
	recheck bool
}

// remembered is how many checkpoints an agent may be behind with its acknowledgements.
const remembered = 4

type sentDigest struct {
	revision uint64
	digest   codec.Digest
	at       time.Time
}

// pendingCheckpoint is a checkpoint to be sent.
type pendingCheckpoint struct {
	revision uint64
	// complete: the mailbox was empty, and every change up to position had been put into it
	// before.
	complete bool
	position uint64
}

// rechecks reports whether works of which the agent has newer versions have to be looked at.
// The caller has the lock.
func (s *subscription) rechecks() bool {
	due := s.sync.recheck
	s.sync.recheck = false
	return due && s.list.HasNewer()
}

// completeCheckpoint returns the checkpoint that is due when nothing is left to send. position is
// that of the registry before the lock was locked.
func (s *subscription) completeCheckpoint(now time.Time, position uint64) (pendingCheckpoint, bool) {
	if s.mail.Len() > 0 || len(s.holdback.later) > 0 || !s.phase.idle() {
		return pendingCheckpoint{}, false
	}
	revision, ok := s.sync.progress.Complete(now, position)
	if !ok {
		return pendingCheckpoint{}, false
	}
	// What there is to tell from now on is for the next one.
	s.sync.progress.Done()
	return pendingCheckpoint{revision: revision, complete: true, position: position}, true
}

// partialCheckpoint returns the checkpoint that is due while something is left to send.
func (s *subscription) partialCheckpoint(now time.Time, position uint64) (pendingCheckpoint, bool) {
	if !s.sync.progress.MayBePartial(now) {
		return pendingCheckpoint{}, false
	}
	if oldest, ok := s.oldest(); ok && s.phase.idle() {
		if revision, ok := s.sync.progress.Partial(now, position, oldest); ok {
			return pendingCheckpoint{revision: revision}, true
		}
	}
	s.sync.progress.Postpone(now.Add(partialPause))
	return pendingCheckpoint{}, false
}

// oldest returns a revision below which every record was sent; false: nothing is left to
// send. Entries that rest were popped and not sent.
func (s *subscription) oldest() (revision uint64, ok bool) {
	revision, ok = s.mail.Oldest()
	for _, r := range s.holdback.later {
		if !ok || r.Revision < revision {
			revision, ok = r.Revision, true
		}
	}
	return revision, ok
}

// begin says that from now on the mailbox has all that the party lacks.
func (s *subscription) begin(now time.Time) { s.locked(func() { s.base(now, nil) }) }

// base is begin; l is the list that was just compared, if one was. The caller has the lock.
func (s *subscription) base(now time.Time, l *list) {
	if s.hello.Protocol > 0 {
		s.sync.progress.Begin(cursorRevision(s.cursor), now.Add(partialPause))
	}
	if l == nil {
		return
	}
	if !l.timedOut {
		s.sync.answered++
		s.sync.listed = true
	}
	s.sync.progress.Touch()
}

// touch says that there is something to tell that is not in the mailbox.
func (s *subscription) touch() { s.put(s.sync.progress.Touch) }

// recheck says that other sources than before vouch for the agent's cluster, or have published
// a deletion there again.
func (s *subscription) recheck() {
	s.put(func() {
		s.sync.recheck = true
		s.sync.progress.Touch()
	})
}

// undeliverable says that a record cannot be sent, and was not.
func (s *subscription) undeliverable(revision uint64) {
	s.locked(func() { s.sync.progress.Block(revision) })
}

// await lets the next complete checkpoint wait for the router.
func (s *subscription) await(position uint64) {
	s.locked(func() {
		s.sync.progress.Touch()
		s.sync.progress.Await(position)
	})
}

// checkpoint tells a party how far it is.
func (t *stream) checkpoint(m pendingCheckpoint) error {
	s := t.sub
	head := t.cfg.Store.Head()
	c := codec.Checkpoint{Cursor: codec.Cursor{StoreID: head.StoreID, Incarnation: head.Incarnation, Revision: m.revision}}
	if s.part == codec.Spec {
		cluster := t.cfg.Store.ClusterHead(s.scope.DataType, s.scope.Cluster)
		if m.complete && cluster.SpecRevision > m.position {
			// The digest is of more than was sent.
			s.await(cluster.SpecRevision)
			t.registry.await(s, cluster.SpecRevision)
			return nil
		}
		if m.complete {
			c.Digest = &cluster.Digest
		}
		c.HighestSequenceID = codec.FollowableSequence(cluster.Sequence, t.cfg.Now())
		c.SyncedSources = t.sync.Sources.SyncedSources(s.scope)
		c.Orphans = s.list.Orphans()
	}
	// It is noted before it is sent: the answer may be faster than the sending stream.
	s.maySendCheckpoint(t.cfg.Now(), t.cfg.Checkpoint, m, &c)
	t.metrics.checkpoints.WithLabelValues(string(s.part)).Inc()
	return t.sendEvent(codec.NewCheckpoint(t.params(), c))
}

// maySendCheckpoint fills in what the subscription itself knows of a checkpoint, and remembers that the checkpoint goes
// out.
func (s *subscription) maySendCheckpoint(now time.Time, pause time.Duration, m pendingCheckpoint, c *codec.Checkpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	y := &s.sync
	if s.part == codec.Status {
		c.AnsweredStatusRequests = y.answered
	} else {
		if y.progress.Blocked() {
			c.Digest = nil // some of it was not sent
		}
		c.ListAnswered = y.listed
	}
	size := 0
	for _, id := range c.Orphans {
		size += len(id)
	}
	pause += time.Duration(size) * time.Second / orphanReportPace
	y.progress.Reported(m.revision, now.Add(pause), now.Add(max(pause, partialPause)))
	if c.Digest != nil {
		y.sentDigests = append(slices.Delete(y.sentDigests, 0, max(0, len(y.sentDigests)+1-remembered)), sentDigest{m.revision, *c.Digest, now})
	}
}

// Acknowledge notes a party's word that everything up to a cursor is safe with it.
func (f *Feed) Acknowledge(_ context.Context, e *request.Event) error {
	s, a, err := delivered(f.registry, e, codec.ParseAck)
	if err != nil {
		return err
	}
	head := f.cfg.Store.Head()
	if a.Cursor.StoreID != head.StoreID || a.Cursor.Incarnation != head.Incarnation || !s.wasSent(a.Cursor.Revision) {
		return request.Invalid("data", "the cursor is none that this subscription was told", "acknowledge the cursor of a checkpoint as it came")
	}
	if s.part == codec.Status {
		f.metrics.acked(s.part, Unproven)
		f.intake.Seen(s.scope, a.Cursor.Revision)
		return nil
	}
	reportedAt, p, complain := s.confirm(a)
	f.metrics.acked(s.part, p)
	if reportedAt.IsZero() {
		f.peers.Refresh(s.scope)
	} else {
		f.peers.Acknowledged(s.scope, f.cfg.Now().Sub(reportedAt))
	}
	if complain {
		f.cfg.Log.Warn("agent holds something else than the store, also after it listed it",
			"cluster", s.scope.Cluster, "subscription", s.id, "revision", a.Cursor.Revision, "works", a.Digest.Count)
	}
	return nil
}

// wasSent reports whether a party may have been told that it is so far.
func (s *subscription) wasSent(revision uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return revision <= s.sync.progress.Revision()
}

// confirm notes an agent's acknowledgement and returns what it proves, and whether that is
// worth a line in the log. One that comes so late that nobody remembers the digest proves
// nothing. told is when the checkpoint went out that it acknowledges.
func (s *subscription) confirm(a codec.Ack) (reportedAt time.Time, p SyncResult, complain bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	y := &s.sync
	y.acked = max(y.acked, a.Cursor.Revision)
	if a.Digest == nil {
		return reportedAt, Unproven, false
	}
	for _, t := range y.sentDigests {
		if t.revision != a.Cursor.Revision {
			continue
		}
		reportedAt = t.at
		if t.digest == *a.Digest {
			y.proof = InSync
			s.list.MarkInSync()
			return reportedAt, InSync, false
		}
		p = Differs
	}
	if p == Differs {
		y.proof = Differs
		complain, y.mismatchLogged = !y.mismatchLogged, true
	}
	return reportedAt, p, complain
}

// snapshot is the subscription for whoever looks.
func (s *subscription) snapshot() Agent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Agent{
		Scope: s.scope, Transport: s.transport, Since: s.since, Pending: s.mail.Len(),
		Acked: s.sync.acked, Sync: s.sync.proof, Applied: s.orphans.reported,
	}
}
