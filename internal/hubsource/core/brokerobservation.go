package core

import "github.com/hawser-io/hawser/pkg/codec"

// brokerObservation is what the broker has said of a work on one subscription. On
// another one it says nothing. Within a subscription the revisions of the
// broker's store say which of two answers is the later: a receipt has the one at
// which it was decided, a row of the inventory its own, and that there is no row
// counts from the revision of the listing.
type brokerObservation struct {
	sub      int
	what     knowledge
	revision uint64
	reports  int // when
	// fingerprint is the state that it holds or refuses, row what it listed.
	fingerprint specFingerprint
	row         codec.InventoryRecord
	// displaces: the work takes the name of another record when it is published.
	displaces bool
}

// knowledge is what is known of the broker's record of a work.
type knowledge uint8

const (
	// unknown: nothing.
	unknown knowledge = iota
	// differs: it is not what the work is now, which has just changed.
	differs
	// unsure: something was published, and nobody knows what became of it.
	unsure
	// isAbsent: there is none.
	isAbsent
	// listed: it is as the row says.
	listed
	// holds: it is the state with the mark.
	holds
	// confirmedDeleted: its deletion is confirmed.
	confirmedDeleted
	// refused: the state with the mark is not taken.
	refused
)

// on returns what is known on a subscription.
func (b *brokerObservation) on(sub int) knowledge {
	if b.sub != sub {
		return unknown
	}
	return b.what
}

// answer takes what a receipt or a report says, unless something later is known; it
// reports whether that counts. Where it is not told which is the later, a deletion that
// is accepted is never later than that it is confirmed.
func (b *brokerObservation) answer(sub int, what knowledge, m specFingerprint, revision uint64, tick int) bool {
	was, dated := b.on(sub), revision != 0 && b.revision != 0
	switch {
	case dated && was != unknown && b.revision > revision && what != refused:
		return false
	case !dated && was == confirmedDeleted && what == holds && m.deleting:
		return false
	}
	displaces := b.displaces && b.sub == sub && m.deleting
	*b = brokerObservation{sub: sub, what: what, fingerprint: m, revision: revision, reports: tick, displaces: displaces}
	return true
}

// assume takes it that the broker has something else (differs), or may have anything
// (unsure).
func (b *brokerObservation) assume(what knowledge, sub, tick int) {
	*b = brokerObservation{sub: sub, what: what, reports: tick, displaces: b.displaces && b.sub == sub}
}

// forget takes it that nothing is known.
func (b *brokerObservation) forget() { *b = brokerObservation{} }

// list takes what a listing at a revision says; r is nil where there is no row.
// It reports whether that counts.
func (b *brokerObservation) list(sub int, revision uint64, r *codec.InventoryRecord, tick int) bool {
	at := revision
	if r != nil && r.Revision != 0 {
		at = r.Revision
	}
	switch b.on(sub) {
	case unsure, refused:
		return false
	case holds, confirmedDeleted:
		if b.revision >= at {
			return false
		}
	case unknown, differs, isAbsent, listed:
	}
	*b = brokerObservation{sub: sub, what: isAbsent, revision: at, reports: tick}
	if r != nil {
		b.what, b.row = listed, *r
	}
	return true
}

// sync takes it that the broker has exactly the state with a mark.
func (b *brokerObservation) sync(sub int, m specFingerprint, revision uint64, tick int) {
	*b = brokerObservation{sub: sub, what: holds, fingerprint: m, revision: revision, reports: tick}
}

// replace takes it that another record has the work's name since a revision, or
// is going to lose it.
func (b *brokerObservation) replace(sub int, revision uint64, tick int) {
	switch b.on(sub) {
	case holds:
		if b.revision < revision {
			*b = brokerObservation{sub: sub, what: isAbsent, revision: revision, reports: tick, displaces: true}
		}
	case unknown, differs, unsure, isAbsent, listed, refused:
		b.displaces = true
	case confirmedDeleted:
	}
}

// setFingerprint lets go of an older object's maps.
func (b *brokerObservation) setFingerprint(m specFingerprint) { b.fingerprint = m }
