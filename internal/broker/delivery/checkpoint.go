package delivery

import (
	"context"
	"slices"
	"time"

	"github.com/hawser-io/hawser/internal/broker/agentstatus"
	"github.com/hawser-io/hawser/internal/broker/deliveryqueue"
	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

const (
	// partialPause is the interval of partial checkpoints (5 s) while the queue is never empty.
	partialPause = 5 * time.Second
	// orphanReportPace limits the orphan ids that are repeated to one agent, in bytes per second. Checkpoints with
	// many ids are less frequent.
	orphanReportPace = 256 << 10
)

// SyncResult is the result of the last ack on an agent's subscription.
type SyncResult uint8

// Sync results.
const (
	Unverified SyncResult = iota // nothing was acknowledged; always so for OCM agents
	InSync                       // the agent has exactly the works of the store
	OutOfSync                    // the agent has other works, even after it listed them
)

// syncState is the progress of a Hawser client. It is empty for an OCM client, which gets no checkpoints. The
// lock of its subscription guards it.
type syncState struct {
	progress deliveryqueue.Progress
	// sentDigests are the last complete checkpoints of an agent, oldest first, that it may still acknowledge.
	sentDigests []sentDigest
	// acked is the revision that an agent has acknowledged. proof is the result of the last ack. mismatchLogged is
	// true after a mismatch was logged.
	acked          uint64
	proof          SyncResult
	mismatchLogged bool

	// answered is the number of compared lists that the client sent. listed is true after the first one.
	answered uint64
	listed   bool
	// recheck is true if some ahead works of the agent may be forced now.
	recheck bool
}

// remembered is the number of checkpoints that an agent may be behind with its acks.
const remembered = 4

type sentDigest struct {
	revision uint64
	digest   codec.Digest
	at       time.Time
}

// pendingCheckpoint is a checkpoint to be sent.
type pendingCheckpoint struct {
	revision uint64
	// complete is true if the queue was empty after it had received each change up to position.
	complete bool
	position uint64
}

// rechecks reports whether the ahead works of the agent must be checked again, and clears the mark. The caller
// has the lock.
func (s *subscription) rechecks() bool {
	due := s.sync.recheck
	s.sync.recheck = false
	return due && s.list.HasNewer()
}

// completeCheckpoint returns the checkpoint that is due when nothing is left to send. position is that of the
// registry, read before the lock was taken.
func (s *subscription) completeCheckpoint(now time.Time, position uint64) (pendingCheckpoint, bool) {
	if s.mail.Len() > 0 || len(s.holdback.later) > 0 || !s.phase.idle() {
		return pendingCheckpoint{}, false
	}
	revision, ok := s.sync.progress.Complete(now, position)
	if !ok {
		return pendingCheckpoint{}, false
	}
	// Later news belongs to the next checkpoint.
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

// oldest returns a revision below which each record was sent. ok is false if nothing is left to send. Entries
// that are held back were popped but not sent.
func (s *subscription) oldest() (revision uint64, ok bool) {
	revision, ok = s.mail.Oldest()
	for _, r := range s.holdback.later {
		if !ok || r.Revision < revision {
			revision, ok = r.Revision, true
		}
	}
	return revision, ok
}

// begin records that from now on the queue has all records that the client lacks.
func (s *subscription) begin(now time.Time) { s.locked(func() { s.base(now, nil) }) }

// base is begin for a caller that has the lock. l is the list that was just compared, or nil.
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

// touch makes a checkpoint due although the queue has no new record.
func (s *subscription) touch() { s.put(s.sync.progress.Touch) }

// recheck marks the ahead works for another check: other sources are synced for the agent's cluster than
// before, or a source published a deletion again.
func (s *subscription) recheck() {
	s.put(func() {
		s.sync.recheck = true
		s.sync.progress.Touch()
	})
}

// await makes the next complete checkpoint wait until the router has reached position.
func (s *subscription) await(position uint64) {
	s.locked(func() {
		s.sync.progress.Touch()
		s.sync.progress.Await(position)
	})
}

// checkpoint sends a checkpoint to the client.
func (t *stream) checkpoint(m pendingCheckpoint) error {
	s := t.sub
	head := t.cfg.Store.Head()
	c := codec.Checkpoint{Cursor: codec.Cursor{StoreID: head.StoreID, Incarnation: head.Incarnation, Revision: m.revision}}
	if s.part == codec.Spec {
		cluster := t.cfg.Store.ClusterHead(s.scope.DataType, s.scope.Cluster)
		if m.complete && cluster.SpecRevision > m.position {
			// The digest covers records that were not sent yet.
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
	// Record the checkpoint before it is sent: the ack may arrive before Send returns.
	s.maySendCheckpoint(t.cfg.Now(), t.cfg.Checkpoint, m, &c)
	t.metrics.checkpoints.WithLabelValues(string(s.part)).Inc()
	event, err := codec.MarshalCheckpoint(t.params(), c)
	if err != nil {
		return request.Internal(err)
	}
	return t.out.Send(event)
}

// maySendCheckpoint adds the state of the subscription to a checkpoint and records that the checkpoint is sent.
func (s *subscription) maySendCheckpoint(now time.Time, pause time.Duration, m pendingCheckpoint, c *codec.Checkpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	y := &s.sync
	if s.part == codec.Status {
		c.AnsweredStatusRequests = y.answered
	} else {
		if y.progress.Blocked() {
			c.Digest = nil // some of the works were not sent
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

// Acknowledge processes an ack: the client has saved everything up to a cursor.
func (f *Feed) Acknowledge(_ context.Context, e *request.Event) error {
	s, a, err := delivered(f.registry, e, codec.ParseAck)
	if err != nil {
		return err
	}
	head := f.cfg.Store.Head()
	if a.Cursor.StoreID != head.StoreID || a.Cursor.Incarnation != head.Incarnation || !s.wasSent(a.Cursor.Revision) {
		return request.Invalid("data", "the cursor is not that of a checkpoint of this subscription", "acknowledge the cursor of a checkpoint without a change")
	}
	if s.part == codec.Status {
		f.metrics.acked(s.part, Unverified)
		f.intake.AckStatuses(s.scope, a.Cursor.Revision)
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
		f.cfg.Log.Warn("agent is out of sync with the store, even after it listed its works",
			"cluster", s.scope.Cluster, "subscription", s.id, "revision", a.Cursor.Revision, "works", a.Digest.Count)
	}
	return nil
}

// wasSent reports whether a checkpoint with this revision may have been sent to the client.
func (s *subscription) wasSent(revision uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return revision <= s.sync.progress.Revision()
}

// confirm records an agent's ack. It returns the sync result and whether to log it. A late ack, whose digest is
// no longer remembered, proves nothing. reportedAt is when the acknowledged checkpoint was sent.
func (s *subscription) confirm(a codec.Ack) (reportedAt time.Time, p SyncResult, complain bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	y := &s.sync
	y.acked = max(y.acked, a.Cursor.Revision)
	if a.Digest == nil {
		return reportedAt, Unverified, false
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
		p = OutOfSync
	}
	if p == OutOfSync {
		y.proof = OutOfSync
		complain, y.mismatchLogged = !y.mismatchLogged, true
	}
	return reportedAt, p, complain
}

// state returns the sync state of an agent. head is the store's summary of its cluster.
func (s *subscription) state(head store.ClusterHead) agentstatus.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return stateOf(s.sync.proof, s.sync.acked, s.mail.Len(), head)
}

// snapshot copies the state for the operator API, so that listing holds no lock while it sends.
func (s *subscription) snapshot() Agent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Agent{
		Scope: s.scope, Transport: s.transport, Since: s.since, Pending: s.mail.Len(),
		Acked: s.sync.acked, Sync: s.sync.proof, Applied: s.orphans.reported,
	}
}
