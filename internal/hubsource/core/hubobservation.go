package core

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// hubObservation is what the hub has shown of a work in its present epoch. Within an epoch, resource versions
// order two states, a generation never falls, and a deleted uid does not come back. An informer may lag, so the
// hub itself is queried before an epoch ends.
type hubObservation struct {
	// object is the newest state, or the last one of a deleted work. It is nil while only a report is known. since
	// is the tick of its arrival.
	object *workv1.ManifestWork
	since  int
	// shown is the last resource version that the informer showed. lagging is since when shown has been older than
	// object.
	shown   string
	lagging time.Time
	// ended is how the work ended according to the informer, endedAt the time. absent: the hub itself returned that
	// the work does not exist.
	ended   ending
	endedAt time.Time
	endTick int
	absent  bool
	// answered is the tick of the last query that the hub has answered; querying: a query is due.
	answered int
	querying bool
	retry    retry
	// tag is the tag of the object with the fingerprint tagged.
	tagged specFingerprint
	tag    codec.Tag
}

// ending is how a work ended according to the informer.
type ending uint8

const (
	alive ending = iota
	// deleted: the hub sent a delete event.
	deleted
	// unseen: the work is not in a new list of the hub, or another work has its name. No deletion was observed.
	unseen
)

// news classifies an object of the informer.
type news uint8

const (
	nothing news = iota
	// later: the object is later than the known state.
	later
	// lags: the object is behind an answer of the hub.
	lags
	// contradicts: the hub itself returned that the work does not exist.
	contradicts
	// impossible in one hub epoch: an informer may be slow, but it does not go back.
	impossible
)

// show stores an object of the informer and classifies it.
func (h *hubObservation) show(o *workv1.ManifestWork, tick int, now time.Time) news {
	fell := h.shown != "" && olderVersion(o.ResourceVersion, h.shown)
	h.shown = o.ResourceVersion
	if h.ended == unseen { // a list lacked the work, which is no evidence
		h.ended = alive
	}
	switch {
	case h.object == nil:
		h.object, h.since = o, tick
		return later
	case fell, h.ended == deleted:
		return impossible
	case h.absent:
		return contradicts
	case olderVersion(o.ResourceVersion, h.object.ResourceVersion):
		if h.lagging.IsZero() {
			h.lagging = now
		}
		return lags
	case o.Generation < h.object.Generation, h.differs(o):
		return impossible
	}
	h.lagging = time.Time{}
	if o.ResourceVersion == h.object.ResourceVersion {
		return nothing
	}
	h.object, h.since = o, tick
	return later
}

// differs reports whether an object has the known resource version but another content.
func (h *hubObservation) differs(o *workv1.ManifestWork) bool {
	return h.object != nil && o.ResourceVersion == h.object.ResourceVersion && !fingerprintOf(o).equal(fingerprintOf(h.object))
}

// end records that the work ended according to the informer.
func (h *hubObservation) end(e ending, tick int, now time.Time) {
	h.ended, h.endTick, h.endedAt, h.lagging = e, tick, now, time.Time{}
	h.retry.reset()
}

// found stores the hub's answer to a query that began at tick requests. It returns why the hub must have gone
// back in time, "" without a contradiction.
func (h *hubObservation) found(o *workv1.ManifestWork, requests, tick int, now time.Time) (contradiction string) {
	known := h.object != nil && h.since < requests
	switch {
	case h.absent, h.ended == deleted && h.endTick < requests:
		return "the hub has a work again that was gone"
	case known && (olderThan(o, h.object) || o.Generation < h.object.Generation), h.differs(o):
		return "the hub has an older state of its works than before"
	case h.ended == deleted: // the deletion came after the query
		return ""
	}
	h.ended = alive
	if h.object == nil || olderThan(h.object, o) {
		h.object, h.since = o, tick
	}
	h.confirmByHub(requests, now)
	return ""
}

// wrote stores the hub's answer to a write of this source. An open query stays open. The informer has to show
// the answer too, unless it has shown that state or a later one already.
func (h *hubObservation) wrote(o *workv1.ManifestWork, requests, tick int, now time.Time) {
	if o == nil || h.ended != alive || h.absent {
		return
	}
	h.answered = max(h.answered, requests)
	if olderThan(h.object, o) {
		h.object, h.since = o, tick
	}
	if h.shown != h.object.ResourceVersion && h.lagging.IsZero() {
		h.lagging = now
	}
}

// listed stores the resource version of the work in a list of the hub. It returns why the hub must have gone
// back in time, "" without a contradiction.
func (h *hubObservation) listed(version string, requests int, now time.Time) (contradiction string) {
	switch {
	case h.object == nil || h.since > requests || h.ended == deleted && h.endTick > requests:
		return "" // query it alone
	case h.absent, h.ended == deleted:
		return "the hub has a work again that was gone"
	case olderVersion(version, h.object.ResourceVersion):
		return "the hub has an older state of its works than before"
	case version == h.object.ResourceVersion:
		h.ended = alive
		h.confirmByHub(requests, now)
	}
	return ""
}

// confirmByHub records that the hub answered the query that began at tick requests. While the informer shows an
// older state, the hub is queried again after a delay. Without this, a rollback to the state that the informer
// shows would not be detected.
func (h *hubObservation) confirmByHub(requests int, now time.Time) {
	h.answered, h.querying, h.lagging = max(h.answered, requests), false, time.Time{}
	if h.shown != h.object.ResourceVersion {
		h.lagging = now
	}
	h.retry.reset()
}

// notThere records that the hub did not have the work at tick requests. If the informer still shows the work,
// the hub is queried again, because the work may come back. The informer cannot report the end of a work that
// it never showed.
func (h *hubObservation) notThere(requests, tick int, now time.Time) {
	if h.object != nil && h.since > requests {
		return
	}
	if h.object != nil && h.ended == alive && h.shown == "" {
		h.end(unseen, tick, now)
	}
	h.absent, h.answered, h.lagging = true, max(h.answered, requests), time.Time{}
	h.querying = h.ended == alive && h.object != nil
}

func (h *hubObservation) query() { h.querying = true }

// gone reports whether the informer reported the end of a work, and the hub confirmed it.
func (h *hubObservation) gone() bool { return h.ended != alive && h.absent }

// deleting reports whether the broker is to receive a deletion.
func (h *hubObservation) deleting() bool {
	return h.ended != alive || h.object != nil && h.object.DeletionTimestamp != nil
}

// setTag stores the tag of an object.
func (h *hubObservation) setTag(o *workv1.ManifestWork, t codec.Tag) {
	h.tagged, h.tag = fingerprintOf(o), t
}

// untag drops the tag: the broker may hold other finalizers than the tagged object has.
func (h *hubObservation) untag() { h.tagged = specFingerprint{} }

func (h *hubObservation) isTagged() bool { return h.tagged.equal(fingerprintOf(h.object)) }

// fingerprint returns the state that the broker should hold.
func (h *hubObservation) fingerprint() specFingerprint {
	m := fingerprintOf(h.object)
	m.deleting = m.deleting || h.ended != alive
	return m
}

// specFingerprint decides whether two states of a work differ for the broker.
type specFingerprint struct {
	generation          int64
	deleting            bool
	labels, annotations map[string]string
}

func fingerprintOf(o *workv1.ManifestWork) specFingerprint {
	return specFingerprint{generation: o.Generation, deleting: o.DeletionTimestamp != nil, labels: o.Labels, annotations: o.Annotations}
}

func (m specFingerprint) equal(n specFingerprint) bool {
	return m.generation == n.generation && m.deleting == n.deleting &&
		maps.Equal(m.labels, n.labels) && maps.Equal(m.annotations, n.annotations)
}

// olderThan compares resource versions. A version that is not a number is never older: the last one wins.
func olderThan(a, b *workv1.ManifestWork) bool {
	return olderVersion(a.ResourceVersion, b.ResourceVersion)
}

func olderVersion(a, b string) bool {
	n, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && n < 0
}

func hasFinalizer(o *workv1.ManifestWork) bool {
	return slices.Contains(o.Finalizers, workv1.ManifestWorkFinalizer)
}

func isLarge(o *workv1.ManifestWork) bool {
	return manifestwork.ManifestsSize(o) > manifestwork.MaxManifestsSize
}
