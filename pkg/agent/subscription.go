package agent

import (
	"errors"
	"slices"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// protocol is the version of Hawser's additions to the OCM protocol.
const protocol = transport.Protocol

// subscriptionState is the present subscription and what its checkpoints said. Guarded by works.mu.
type subscriptionState struct {
	serial uint64 // counts subscriptions
	// cursor is where the next one goes on; the zero cursor if it has to list.
	cursor codec.Cursor

	subscription string
	hawser       bool // the broker gives checkpoints
	// stateless: nobody keeps anything between the agent and its source. limit is the largest event
	// that fits, 0 if nobody knows. listedAt is when the source was told last what is held.
	stateless bool
	limit     int
	listedAt  time.Time
	// aliveDue: it is to hear that the agent is there.
	aliveDue bool

	resyncProgress
	// listDue: a list is about to be sent, at listAt if that is ahead. What was received after
	// the mark of the set's clock was not on the latest.
	listDue   bool
	listAt    time.Time
	listClock uint64
	// logged: it was logged that the digests differ after a list.
	logged bool

	// inSync: the latest checkpoint found that exactly what the broker has is
	// held, but for the orphans, which no record explains.
	inSync  bool
	orphans []string
	// syncedSources are the sources that have finished comparing.
	syncedSources []string

	// ack is the latest that is to be sent, acked the latest that was.
	ack, acked *codec.Ack

	// lastOrphanReport is what the broker was told last that no work explains;
	// orphanReportDue says that there is another to tell. deaf: the broker is older
	// and does not take that.
	lastOrphanReport   codec.OrphanReport
	orphanReportDue    bool
	reportsUnsupported bool
}

// begin begins a subscription. resumed says that it goes on from the cursor; else there
// is none any more, and everything is to be listed.
func (l *subscriptionState) begin(a transport.Accepted) (resumed bool) {
	*l = subscriptionState{serial: l.serial + 1, cursor: l.cursor, subscription: a.SubscriptionID, hawser: a.Protocol > 0, stateless: a.Stateless, limit: a.MaxEventBytes}
	resumed = l.hawser && a.Resync == codec.ResyncCursor && l.cursor != (codec.Cursor{})
	if !resumed {
		l.cursor, l.state = codec.Cursor{}, listed
	}
	return resumed
}

// end ends it.
func (l *subscriptionState) end(err error) {
	*l = subscriptionState{serial: l.serial, cursor: l.cursor}
	if refused, ok := errors.AsType[*transport.Error](err); ok && refused.Next == transport.NextResync {
		l.cursor = codec.Cursor{}
	}
}

// move says how far the broker's history is covered.
func (l *subscriptionState) move(c codec.Cursor) { l.cursor = c }

// applyCheckpoint lets a checkpoint count. own and late are those of classify.
func (l *subscriptionState) applyCheckpoint(cp codec.Checkpoint, orphans []string, own codec.Digest, late bool) resyncAction {
	event, gap := l.classify(cp, own, late)
	v := l.step(event, gap)
	l.orphans, l.syncedSources, l.inSync = orphans, cp.SyncedSources, event == equal
	l.listDue = l.listDue || v == list || v == advanceAndList
	return v
}

// shouldLog reports whether it is to be logged that digests differ.
func (l *subscriptionState) shouldLog() bool {
	report := !l.inSync && !l.logged
	l.logged = l.logged || report
	return report
}

// isOrphan reports whether the broker knows nothing of a held work.
func (l *subscriptionState) isOrphan(id string) bool {
	_, found := slices.BinarySearch(l.orphans, id)
	return found
}

// sameEvidence reports whether the same is known about what nobody wants.
func (l *subscriptionState) sameEvidence(o subscriptionState) bool {
	return l.inSync == o.inSync && slices.Equal(l.syncedSources, o.syncedSources) && slices.Equal(l.orphans, o.orphans)
}

// acknowledge has an ack sent, if the subscription with this serial is still the one.
func (l *subscriptionState) acknowledge(serial uint64, a *codec.Ack) bool {
	if l.serial != serial {
		return false
	}
	l.ack = a
	return true
}

// news reports whether an ack says something new. awaited is one that is to be sent
// later; nil if there is none.
func (l *subscriptionState) news(awaited *codec.Ack, a codec.Ack) bool {
	for _, last := range []*codec.Ack{awaited, l.ack, l.acked} {
		if last != nil {
			return !sameAck(*last, a)
		}
	}
	return true
}

func sameAck(a, b codec.Ack) bool {
	if a.Cursor != b.Cursor || (a.Digest == nil) != (b.Digest == nil) {
		return false
	}
	return a.Digest == nil || *a.Digest == *b.Digest
}

// listing says that a list is about to be sent, at this time of the set's clock.
func (l *subscriptionState) listing(clock uint64, now time.Time) {
	l.listDue, l.listAt, l.listClock, l.listedAt = false, time.Time{}, clock, now
}

// alive says whether the source is to hear that the agent is there.
func (l *subscriptionState) alive(due bool) { l.aliveDue = due }

// list has a list sent when the last one was so long ago. It says after how long that is, and
// whether one is due sooner than it was.
func (l *subscriptionState) list(now time.Time, every time.Duration) (after time.Duration, sooner bool) {
	at := l.listedAt.Add(every)
	if l.listDue && !at.Before(l.listAt) {
		return 0, false
	}
	l.listDue, l.listAt = true, at
	return max(0, at.Sub(now)), true
}

// lists reports whether a list is to be sent now.
func (l *subscriptionState) lists(now time.Time) bool { return l.listDue && !l.listAt.After(now) }

// takeAck returns the ack that is about to be sent.
func (l *subscriptionState) takeAck() *codec.Ack {
	l.acked, l.ack = l.ack, nil
	return l.acked
}

// reportPending says that the broker is about to be told what no work explains.
func (l *subscriptionState) reportPending(u codec.OrphanReport) {
	l.orphanReportDue, l.lastOrphanReport = false, u
}

// requeueReport has the broker told that, unless it was told the same.
func (l *subscriptionState) requeueReport(same func(codec.OrphanReport) bool) bool {
	due := l.hawser && !l.reportsUnsupported && !l.orphanReportDue && !same(l.lastOrphanReport)
	l.orphanReportDue = l.orphanReportDue || due
	return due
}

// reportSent says what became of a letter.
func (l *subscriptionState) reportSent(s SyncEvent, err error) {
	switch retry := transport.Retryable(err); {
	case err == nil:
	case s.orphans:
		l.orphanReportDue, l.reportsUnsupported = l.orphanReportDue || retry, !retry
	case !retry:
	case s.alive: // the next one says the same
	case s.ack == nil:
		l.listDue = true
	case l.ack == nil:
		l.ack = s.ack
	}
}

// due reports whether NextSync has something.
func (l *subscriptionState) due(now time.Time) bool {
	return l.lists(now) || l.ack != nil || l.orphanReportDue || l.aliveDue
}
