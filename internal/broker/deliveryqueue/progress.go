package deliveryqueue

import "time"

// Progress decides when a subscriber is told how far it is, and how far that
// is: the revision of a checkpoint, up to which every change of every record
// was sent. Nobody is told before there is a base, from which on the mailbox
// holds all that the subscriber lacks. There are two kinds of checkpoints:
//
//   - complete, when the mailbox is empty: once something was sent, or there is
//     something else to tell, and not more often than the last one asked for;
//   - partial, while a long delivery runs, now and then.
//
// The zero value has no base. A Progress is for one goroutine at a time.
type Progress struct {
	base bool
	due  bool
	// reported is the revision that the subscriber was last told.
	reported uint64
	// await is the position before which no complete one is made.
	await uint64
	// limit is a revision that must not be covered, 0 for none.
	limit uint64
	// complete and partial are the times before which no such one is made.
	complete, partial time.Time
}

// Begin says that there is a base: a complete checkpoint is due, a partial one
// from the given time on. told is the revision that the subscriber came with, 0
// for none. Called again it has no effect.
func (p *Progress) Begin(reported uint64, partial time.Time) {
	if !p.base {
		p.base, p.due, p.reported, p.partial = true, true, reported, partial
	}
}

// Touch says that something was sent, or that there is something else to tell.
func (p *Progress) Touch() { p.due = true }

// Block says that a record that was last changed at a revision cannot be sent
// at all. Nothing from there on is ever covered.
func (p *Progress) Block(revision uint64) {
	if p.limit == 0 || revision < p.limit {
		p.limit = revision
	}
}

// Blocked reports whether something cannot be sent.
func (p *Progress) Blocked() bool { return p.limit != 0 }

// Await lets no complete checkpoint be made before a position.
func (p *Progress) Await(position uint64) { p.await = position }

// Complete returns the revision of a complete checkpoint, if one is to be made
// now. position is one up to which every change had been put into the mailbox
// before it was seen to be empty.
func (p *Progress) Complete(now time.Time, position uint64) (revision uint64, ok bool) {
	if !p.pending() || now.Before(p.complete) || position < p.await {
		return 0, false
	}
	return p.bound(position), true
}

// Partial returns the revision of a partial checkpoint, if one is to be made
// now. oldest is that of [Queue.Oldest], and position one up to which every
// change had been put into the mailbox before.
func (p *Progress) Partial(now time.Time, position, oldest uint64) (revision uint64, ok bool) {
	if !p.MayBePartial(now) || oldest == 0 {
		return 0, false
	}
	revision = p.bound(min(position, oldest-1))
	return revision, revision > p.reported
}

// MayBePartial reports whether it is time for a partial checkpoint.
func (p *Progress) MayBePartial(now time.Time) bool { return p.base && !now.Before(p.partial) }

// Reported says that a checkpoint is on its way, and when the next ones may be.
func (p *Progress) Reported(revision uint64, complete, partial time.Time) {
	p.reported = revision
	p.complete, p.partial = complete, partial
}

// Done says that the checkpoint told everything there is to tell.
func (p *Progress) Done() { p.due = false }

// Postpone says that there is nothing to tell for a partial checkpoint now.
func (p *Progress) Postpone(partial time.Time) { p.partial = partial }

// Revision is what the subscriber was last told, or came with.
func (p *Progress) Revision() uint64 { return p.reported }

// Until returns when Complete has to be asked again although nothing happens;
// false: there is no such time.
func (p *Progress) Until(position uint64) (time.Time, bool) {
	return p.complete, p.pending() && position >= p.await
}

// pending reports whether a complete checkpoint is wanted, and can say anything
// that was not said.
func (p *Progress) pending() bool {
	return p.base && p.due && (p.limit == 0 || p.limit-1 > p.reported)
}

func (p *Progress) bound(revision uint64) uint64 {
	if p.limit != 0 {
		return min(revision, p.limit-1)
	}
	return revision
}
