package core

import "github.com/hawser-io/hawser/pkg/codec"

// brokerObservation is what the broker has reported of a work on one subscription. It is valid on that
// subscription only. Within a subscription the revisions of the broker's store order two answers. A receipt has
// the revision of its decision, and a row of the inventory has its own. A missing row has the revision of the
// listing.
type brokerObservation struct {
	sub      int
	what     recordState
	revision uint64
	reports  int // tick of the observation
	// fingerprint is the state that the broker holds or refuses; row is the listed record.
	fingerprint specFingerprint
	row         codec.InventoryRecord
	// displaces: when the work is published, it takes its name from another record.
	displaces bool
}

// recordState is what is known of the broker's record of a work.
type recordState uint8

const (
	// recordUnknown: nothing is known.
	recordUnknown recordState = iota
	// recordDiffers: the record is not the present state of the work, which has just changed.
	recordDiffers
	// recordUnsure: something was published, and its outcome is unknown.
	recordUnsure
	// recordAbsent: there is no record.
	recordAbsent
	// recordListed: the record is as in row.
	recordListed
	// recordMatches: the record is the state with the fingerprint.
	recordMatches
	// recordDeleted: the deletion of the work is confirmed.
	recordDeleted
	// recordRejected: the broker rejects the state with the fingerprint.
	recordRejected
)

// on returns what is known on a subscription, unknown for any other subscription.
func (b *brokerObservation) on(sub int) recordState {
	if b.sub != sub {
		return recordUnknown
	}
	return b.what
}

// answer stores what a receipt or a report states, unless something later is known. It returns false if it
// stored nothing. Without revisions, an accepted deletion is never later than a confirmed one.
func (b *brokerObservation) answer(sub int, what recordState, m specFingerprint, revision uint64, tick int) bool {
	was, dated := b.on(sub), revision != 0 && b.revision != 0
	switch {
	case dated && was != recordUnknown && b.revision > revision && what != recordRejected:
		return false
	case !dated && was == recordDeleted && what == recordMatches && m.deleting:
		return false
	}
	displaces := b.displaces && b.sub == sub && m.deleting
	*b = brokerObservation{sub: sub, what: what, fingerprint: m, revision: revision, reports: tick, displaces: displaces}
	return true
}

// assume records that the record differs from the work, or that its state is unsure.
func (b *brokerObservation) assume(what recordState, sub, tick int) {
	*b = brokerObservation{sub: sub, what: what, reports: tick, displaces: b.displaces && b.sub == sub}
}

// forget resets the observation to unknown.
func (b *brokerObservation) forget() { *b = brokerObservation{} }

// list stores the row of a listing at a revision; r is nil if there is no row. It returns false if it stored
// nothing.
func (b *brokerObservation) list(sub int, revision uint64, r *codec.InventoryRecord, tick int) bool {
	at := revision
	if r != nil && r.Revision != 0 {
		at = r.Revision
	}
	switch b.on(sub) {
	case recordUnsure, recordRejected:
		return false
	case recordMatches, recordDeleted:
		if b.revision >= at {
			return false
		}
	case recordUnknown, recordDiffers, recordAbsent, recordListed:
	}
	*b = brokerObservation{sub: sub, what: recordAbsent, revision: at, reports: tick}
	if r != nil {
		b.what, b.row = recordListed, *r
	}
	return true
}

// sync records that the broker holds exactly the state with a fingerprint.
func (b *brokerObservation) sync(sub int, m specFingerprint, revision uint64, tick int) {
	*b = brokerObservation{sub: sub, what: recordMatches, fingerprint: m, revision: revision, reports: tick}
}

// replace records that another record has the work's name since a revision, or is going to lose the name to the
// work.
func (b *brokerObservation) replace(sub int, revision uint64, tick int) {
	switch b.on(sub) {
	case recordMatches:
		if b.revision < revision {
			*b = brokerObservation{sub: sub, what: recordAbsent, revision: revision, reports: tick, displaces: true}
		}
	case recordUnknown, recordDiffers, recordUnsure, recordAbsent, recordListed, recordRejected:
		b.displaces = true
	case recordDeleted:
	}
}

// setFingerprint replaces an equal fingerprint, so that the maps of an older object are freed.
func (b *brokerObservation) setFingerprint(m specFingerprint) { b.fingerprint = m }
