package agent

import (
	"errors"
	"slices"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// protocol is the version of the Hawser extensions of the OCM protocol.
const protocol = transport.Protocol

// subscriptionState is the current subscription and the result of its checkpoints. Guarded by works.mu.
type subscriptionState struct {
	serial uint64 // counts subscriptions
	// cursor is the cursor to resume from; the zero cursor if the agent has to list.
	cursor codec.Cursor

	subscription string
	hawser       bool // the broker sends checkpoints
	// stateless: the broker keeps no state. limit is the size of the largest event in bytes, 0 if unknown. listedAt
	// is when the last list was sent to the source.
	stateless bool
	limit     int
	listedAt  time.Time
	// aliveDue: a keepalive is due.
	aliveDue bool

	resyncProgress
	// listDue: a list must be sent, at listAt if that is in the future. listClock is the set's clock at the latest
	// list: specs received after it are not in that list.
	listDue   bool
	listAt    time.Time
	listClock uint64
	// logged: a digest difference after a list was logged.
	logged bool

	// inSync: the latest checkpoint proved that the agent holds exactly the broker's works, except for orphans.
	inSync  bool
	orphans []string
	// syncedSources are the sources that have synced.
	syncedSources []string

	// ack is the latest ack to send, acked the latest that was sent.
	ack, acked *codec.Ack

	// lastOrphanReport is the last orphan report sent to the broker. orphanReportDue: a new one must be sent.
	// reportsUnsupported: the broker is older and rejects orphan reports.
	lastOrphanReport   codec.OrphanReport
	orphanReportDue    bool
	reportsUnsupported bool
}

// begin begins a subscription. resumed: it resumes from the cursor. Otherwise the cursor is dropped, and all
// works must be listed.
func (l *subscriptionState) begin(a transport.Accepted) (resumed bool) {
	*l = subscriptionState{serial: l.serial + 1, cursor: l.cursor, subscription: a.SubscriptionID, hawser: a.Protocol > 0, stateless: a.Stateless, limit: a.MaxEventBytes}
	resumed = l.hawser && a.Resync == codec.ResyncCursor && l.cursor != (codec.Cursor{})
	if !resumed {
		l.cursor, l.state = codec.Cursor{}, listed
	}
	return resumed
}

// end ends the subscription. A refusal that requires a resync drops the cursor.
func (l *subscriptionState) end(err error) {
	*l = subscriptionState{serial: l.serial, cursor: l.cursor}
	if refused, ok := errors.AsType[*transport.Error](err); ok && refused.Next == transport.NextResync {
		l.cursor = codec.Cursor{}
	}
}

// move sets the cursor in the broker's history.
func (l *subscriptionState) move(c codec.Cursor) { l.cursor = c }

// applyCheckpoint applies a checkpoint. own and late are the parameters of classify.
func (l *subscriptionState) applyCheckpoint(cp codec.Checkpoint, orphans []string, own codec.Digest, late bool) resyncAction {
	event, gap := l.classify(cp, own, late)
	v := l.step(event, gap)
	l.orphans, l.syncedSources, l.inSync = orphans, cp.SyncedSources, event == equal
	l.listDue = l.listDue || v == list || v == advanceAndList
	return v
}

// shouldLog reports whether a digest difference must be logged.
func (l *subscriptionState) shouldLog() bool {
	report := !l.inSync && !l.logged
	l.logged = l.logged || report
	return report
}

// isOrphan reports whether the broker has no record of a held work.
func (l *subscriptionState) isOrphan(id string) bool {
	_, found := slices.BinarySearch(l.orphans, id)
	return found
}

// sameEvidence reports whether the evidence about orphans is the same as in o.
func (l *subscriptionState) sameEvidence(o subscriptionState) bool {
	return l.inSync == o.inSync && slices.Equal(l.syncedSources, o.syncedSources) && slices.Equal(l.orphans, o.orphans)
}

// acknowledge queues an ack, if the subscription with this serial is still the current one.
func (l *subscriptionState) acknowledge(serial uint64, a *codec.Ack) bool {
	if l.serial != serial {
		return false
	}
	l.ack = a
	return true
}

// news reports whether an ack differs from the last one. awaited is an ack that is to be sent later; nil if
// there is none.
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

// listing records that a list is about to be sent, at this time of the set's clock.
func (l *subscriptionState) listing(clock uint64, now time.Time) {
	l.listDue, l.listAt, l.listClock, l.listedAt = false, time.Time{}, clock, now
}

// alive sets whether a keepalive is due.
func (l *subscriptionState) alive(due bool) { l.aliveDue = due }

// list schedules a list for the time at which the last one is every old. It returns the wait. sooner reports
// whether the list is now due earlier than before.
func (l *subscriptionState) list(now time.Time, every time.Duration) (after time.Duration, sooner bool) {
	at := l.listedAt.Add(every)
	if l.listDue && !at.Before(l.listAt) {
		return 0, false
	}
	l.listDue, l.listAt = true, at
	return max(0, at.Sub(now)), true
}

// lists reports whether a list must be sent now.
func (l *subscriptionState) lists(now time.Time) bool { return l.listDue && !l.listAt.After(now) }

// takeAck returns the ack that is about to be sent.
func (l *subscriptionState) takeAck() *codec.Ack {
	l.acked, l.ack = l.ack, nil
	return l.acked
}

// reportPending records the orphan report that is about to be sent.
func (l *subscriptionState) reportPending(u codec.OrphanReport) {
	l.orphanReportDue, l.lastOrphanReport = false, u
}

// requeueReport schedules an orphan report, unless the last one is the same.
func (l *subscriptionState) requeueReport(same func(codec.OrphanReport) bool) bool {
	due := l.hawser && !l.reportsUnsupported && !l.orphanReportDue && !same(l.lastOrphanReport)
	l.orphanReportDue = l.orphanReportDue || due
	return due
}

// reportSent records the result of publishing an event.
func (l *subscriptionState) reportSent(s SyncEvent, err error) {
	switch retry := transport.Retryable(err); {
	case err == nil:
	case s.orphans:
		l.orphanReportDue, l.reportsUnsupported = l.orphanReportDue || retry, !retry
	case !retry:
	case s.alive: // the next ack replaces a lost keepalive
	case s.ack == nil:
		l.listDue = true
	case l.ack == nil:
		l.ack = s.ack
	}
}

// due reports whether NextSync has an event.
func (l *subscriptionState) due(now time.Time) bool {
	return l.lists(now) || l.ack != nil || l.orphanReportDue || l.aliveDue
}
