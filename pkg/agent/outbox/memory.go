package outbox

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// memory has the last accepted status of each work, as an earlier process saved it. It is valid only if the
// broker accepted nothing after it was written. The next checkpoint shows that. Until then it is undecided, and
// a status that equals the saved one is not sent.
type memory struct {
	contentHashes map[string]string // by resource id; nil if nothing is known
	undecided     bool
	// sequence is the highest sequence id in the memory. highest is the highest one that the broker accepted and
	// stored, of this process and of the memory.
	sequence, highest string
}

func (m *memory) forget(id string) { delete(m.contentHashes, id) }

func (m *memory) accepted(sequence string) {
	if newer(m.highest, sequence) {
		m.highest = sequence
	}
}

// makeEssence returns a hash for statuses with equal content. It ignores transition times and the order of
// conditions, which each process sets again.
func (i *item) makeEssence() string {
	s := *i.status.DeepCopy()
	timeless(s.Conditions)
	for n := range s.ResourceStatus.Manifests {
		timeless(s.ResourceStatus.Manifests[n].Conditions)
	}
	// Put has hashed the same status; this is another hash, without times.
	hash, err := manifestwork.StatusHash(s)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256([]byte(i.about(hash)))
	return hex.EncodeToString(sum[:16])
}

func timeless(list []metav1.Condition) {
	for n := range list {
		list[n].LastTransitionTime = metav1.Time{}
	}
	slices.SortFunc(list, func(a, b metav1.Condition) int { return cmp.Compare(a.Type, b.Type) })
}

// Restore sets the result of Reported of an earlier process. Sequence ids continue above sequence and above
// reserved, the limit up to which that process may have used them. The error is that of
// codec.Sequencer.Observe.
func (o *Outbox) Restore(sequence, reserved string, accepted map[string]string) error {
	o.memory = memory{contentHashes: maps.Clone(accepted), undecided: true, sequence: sequence, highest: sequence}
	if err := o.sequence.Observe(sequence); err != nil {
		return err
	}
	return o.sequence.Observe(reserved)
}

// ToReserve reports whether a status of a work must be sent with a sequence id above all reserved ones. limit
// is the id up to which to reserve before Next.
func (o *Outbox) ToReserve(id string, now time.Time, ahead time.Duration) (limit string, needed bool) {
	i := o.items[id]
	if i == nil || i.underWay || !o.due(i) {
		return "", false
	}
	next := o.sequence
	if o.reserved != "" && !newer(o.reserved, next.Next(o.millis(now))) {
		return "", false
	}
	return o.sequence.UpperBound(o.millis(now), ahead.Milliseconds()), true
}

// Reserved sets the limit of the reserved sequence ids.
func (o *Outbox) Reserved(limit string) { o.reserved = limit }

// Reported returns the highest accepted sequence id, and the accepted statuses by resource id. While it is
// unknown whether the restored memory is valid, it returns that memory.
func (o *Outbox) Reported() (sequence string, accepted map[string]string) {
	if o.memory.undecided {
		return o.memory.sequence, maps.Clone(o.memory.contentHashes)
	}
	accepted = maps.Clone(o.memory.contentHashes)
	if accepted == nil {
		accepted = map[string]string{}
	}
	for id, i := range o.items {
		if i.accepted != "" && i.essence != "" {
			accepted[id] = i.essence
		}
	}
	return o.memory.highest, accepted
}

// Forget drops the restored memory: the broker may not have these statuses.
func (o *Outbox) Forget() {
	o.memory.contentHashes, o.memory.undecided = nil, false
}

// decide compares the restored memory with the highest sequence id that the broker accepted. It returns true if
// the memory is dropped: the broker accepted a status after the memory was written, or it has lost one.
func (o *Outbox) decide(highest string) (unknown bool) {
	if !o.memory.undecided {
		return false
	}
	if highest != o.memory.sequence {
		o.Forget()
		return true
	}
	o.memory.undecided = false
	for _, i := range o.items {
		o.recognize(i)
	}
	return false
}

// recognize compares a status with the restored memory. If the broker has it from an earlier process, it counts
// as accepted. The last status of a work is sent in any case: the work ends with its answer, which the earlier
// process did not receive.
func (o *Outbox) recognize(i *item) {
	m := &o.memory
	known, has := m.contentHashes[i.work.ResourceID]
	if !has || i.underWay || i.deleted {
		i.possiblySent = false
		return
	}
	e := i.makeEssence()
	i.possiblySent = e == known
	if i.possiblySent && !m.undecided {
		i.accepted, i.essence, i.sequence, i.connection = i.fingerprint(), e, m.sequence, o.connection
		m.forget(i.work.ResourceID)
	}
}
