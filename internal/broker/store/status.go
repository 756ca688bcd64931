package store

import (
	"math"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Why a status is stale, for Outcome.Detail.
const (
	detailOlderSequence = "a newer sequence id is stored"
	detailBadSequence   = "the sequence id is not a number or was made by another node than the one stored"
)

func (p *plan) putStatus() {
	m := p.Record
	switch {
	case m == nil:
		p.say(Ignored, nil, 0)
		return
	case m.State == Grave:
		p.say(Ignored, m, m.StatusRevision)
		return
	case m.State == Live && p.op.Deleted:
		// Whatever its sequence: the cluster does not hold the work.
		p.refuse(SpecAgain, m)
		return
	}
	newer, err := codec.CompareSequence(m.Sequence, p.op.Sequence)
	switch {
	case p.sameStatus(m):
		// It came twice, and whoever waits for the answer may have sent the other.
		p.say(Unchanged, m, m.StatusRevision)
		return
	case err != nil:
		p.stale(m, m.StatusRevision, detailBadSequence)
		return
	case !newer:
		p.stale(m, m.StatusRevision, detailOlderSequence)
		return
	case p.op.Deleted && !confirms(m, p.op.Version):
		p.refuse(SpecAgain, m)
		return
	}
	// The version is not compared: one above the spec's is the truth about the
	// cluster too (the store was restored from a backup), one below says that
	// the cluster is not there yet. Sources drop what they cannot use.
	n := *m
	n.Sequence, n.StatusVersion, n.StatusHash = p.op.Sequence, p.op.Version, p.op.StatusHash
	if p.op.Deleted {
		p.confirm(m, &n, FromOp)
		return
	}
	n.StatusRevision = p.next()
	p.put(m, &n, Keep, FromOp, Keep)
	p.changed(&n, StatusPart)
	p.say(Accepted, &n, n.StatusRevision)
}

// sameStatus reports whether the op is the status that m has.
func (p *plan) sameStatus(m *Meta) bool {
	return !p.op.Deleted && m.StatusRevision != 0 && p.op.Sequence == m.Sequence && p.op.Version == m.StatusVersion &&
		p.op.StatusHash != "" && p.op.StatusHash == m.StatusHash
}

// confirms reports whether a Deleted status about version answers tombstone m.
// A deletion that goes out as version 0 comes back as anything.
func confirms(m *Meta, version int64) bool {
	unversioned := m.SpecSupersedes || m.Version == 0 || m.Version > math.MaxInt32
	return unversioned || version >= m.Version
}
