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

// memory is what an earlier process knew of the broker: which status it accepted
// last of each work. It is right only if nothing was accepted after that was
// written down, which the broker's next word shows; until then (undecided) a
// status that would be the same is not sent.
type memory struct {
	contentHashes map[string]string // by resource id; nil if nothing is known
	undecided     bool
	// sequence is the highest that went with it, highest the highest that the
	// broker accepted and kept, of this process and of the memory.
	sequence, highest string
}

func (m *memory) forget(id string) { delete(m.contentHashes, id) }

func (m *memory) accepted(sequence string) {
	if newer(m.highest, sequence) {
		m.highest = sequence
	}
}

// makeEssence says whether two statuses are the same to a person: the times of
// transitions, and the order of conditions, begin anew with each process.
func (i *item) makeEssence() string {
	s := *i.status.DeepCopy()
	timeless(s.Conditions)
	for n := range s.ResourceStatus.Manifests {
		timeless(s.ResourceStatus.Manifests[n].Conditions)
	}
	// Put has hashed the same status; without times it still has a hash.
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

// Restore takes what Reported returned in an earlier process. Sequence ids
// continue above sequence, and above reserved, up to where that process may have
// used them. The error is that of codec.Sequencer.Observe.
func (o *Outbox) Restore(sequence, reserved string, accepted map[string]string) error {
	o.memory = memory{contentHashes: maps.Clone(accepted), undecided: true, sequence: sequence, highest: sequence}
	if err := o.sequence.Observe(sequence); err != nil {
		return err
	}
	return o.sequence.Observe(reserved)
}

// ToReserve reports whether something is to be sent for a work with a sequence
// id that lies above all that were reserved, and returns up to where to reserve
// them before Take.
func (o *Outbox) ToReserve(id string, now time.Time, ahead time.Duration) (limit string, needed bool) {
	i := o.items[id]
	if i == nil || i.underWay || !o.due(i) {
		return "", false
	}
	next := o.sequence
	if o.reserved != "" && !newer(o.reserved, next.Next(o.millis(now))) {
		return "", false
	}
	return o.sequence.Ahead(o.millis(now), ahead.Milliseconds()), true
}

// Reserved says up to where sequence ids are reserved.
func (o *Outbox) Reserved(limit string) { o.reserved = limit }

// Reported returns the highest sequence id that the broker accepted, and what
// it accepted last, by resource id. As long as it is not known whether what was
// restored is still right, it is that.
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

// Forget gives up what was restored: the broker may not have it.
func (o *Outbox) Forget() {
	o.memory.contentHashes, o.memory.undecided = nil, false
}

// decide compares what was restored with the highest sequence id that the
// broker accepted. It returns true if it is given up: something was accepted
// after it was written down, or the broker has lost something.
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

// recognize compares a status with what was restored of its work, and takes it
// for accepted if the broker has it from an earlier process. The last one is told in any
// case: a work ends with the answer to it, and the earlier process did not get so far.
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
