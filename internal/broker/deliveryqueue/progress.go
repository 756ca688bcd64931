package deliveryqueue

import "time"

// Progress decides when a subscriber is sent a checkpoint, and with which revision. Each change up to this
// revision was sent. Checkpoints begin with the base, from which on the queue has all records that the
// subscriber lacks. There are two kinds of checkpoints:
//
//   - complete, when the queue is empty and something was sent, or there is other news: with the requested
//     pause after the last one;
//   - partial, at intervals during a long delivery.
//
// The zero value has no base. A Progress is for one goroutine at a time.
type Progress struct {
	base bool
	due  bool
	// reported is the revision of the last checkpoint.
	reported uint64
	// await is the position before which no complete checkpoint is made.
	await uint64
	// limit is a revision that no checkpoint may cover, 0 for none.
	limit uint64
	// complete and partial are the earliest times of the next checkpoints of each kind.
	complete, partial time.Time
}

// Begin sets the base: a complete checkpoint is due, and partial ones may be made from the time partial on.
// reported is the revision of the subscriber's cursor, 0 for none. Further calls have no effect.
func (p *Progress) Begin(reported uint64, partial time.Time) {
	if !p.base {
		p.base, p.due, p.reported, p.partial = true, true, reported, partial
	}
}

// Touch records that something was sent, or that there is other news for a checkpoint.
func (p *Progress) Touch() { p.due = true }

// Block records that a record whose last change has this revision cannot be sent. No checkpoint covers this
// revision or a later one.
func (p *Progress) Block(revision uint64) {
	if p.limit == 0 || revision < p.limit {
		p.limit = revision
	}
}

// Blocked reports whether some record cannot be sent.
func (p *Progress) Blocked() bool { return p.limit != 0 }

// Await prevents complete checkpoints before a position.
func (p *Progress) Await(position uint64) { p.await = position }

// Complete returns the revision of a complete checkpoint, if one is due. position is a revision up to which
// each change was in the queue before the queue was seen empty.
func (p *Progress) Complete(now time.Time, position uint64) (revision uint64, ok bool) {
	if !p.pending() || now.Before(p.complete) || position < p.await {
		return 0, false
	}
	return p.bound(position), true
}

// Partial returns the revision of a partial checkpoint, if one is due. oldest is the result of [Queue.Oldest].
// position is a revision up to which each change was in the queue before.
func (p *Progress) Partial(now time.Time, position, oldest uint64) (revision uint64, ok bool) {
	if !p.MayBePartial(now) || oldest == 0 {
		return 0, false
	}
	revision = p.bound(min(position, oldest-1))
	return revision, revision > p.reported
}

// MayBePartial reports whether the time for a partial checkpoint has come.
func (p *Progress) MayBePartial(now time.Time) bool { return p.base && !now.Before(p.partial) }

// Reported records a checkpoint that is about to be sent, and the earliest times of the next checkpoint of each
// kind.
func (p *Progress) Reported(revision uint64, complete, partial time.Time) {
	p.reported = revision
	p.complete, p.partial = complete, partial
}

// Done records that the checkpoint contains all news.
func (p *Progress) Done() { p.due = false }

// Postpone records that there is no news for a partial checkpoint now.
func (p *Progress) Postpone(partial time.Time) { p.partial = partial }

// Revision returns the revision of the last checkpoint, or of the subscriber's cursor before the first one.
func (p *Progress) Revision() uint64 { return p.reported }

// Deadline returns the time at which Complete must be called again although nothing was sent or posted. ok is
// false if there is no such time.
func (p *Progress) Deadline(position uint64) (time.Time, bool) {
	return p.complete, p.pending() && position >= p.await
}

// pending reports whether a complete checkpoint is due and can cover more than the last one.
func (p *Progress) pending() bool {
	return p.base && p.due && (p.limit == 0 || p.limit-1 > p.reported)
}

func (p *Progress) bound(revision uint64) uint64 {
	if p.limit != 0 {
		return min(revision, p.limit-1)
	}
	return revision
}
