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

// hubObservation is what the hub has shown of a work in its present life. Within a
// life the hub's resource versions say which of two states is the later, a
// generation never falls, and a uid that is gone does not come back. An informer
// that only lags is no evidence against that: the hub is asked.
type hubObservation struct {
	// object is the newest state, of one that is gone the last; nil as long as
	// there is only a report. since is when it came.
	object *workv1.ManifestWork
	since  int
	// shown is the resource version that the informer showed last; lagging, since
	// when that has been older than object.
	shown   string
	lagging time.Time
	// ended is what the informer said of its end, endedAt when. absent: the hub
	// itself says that it is not there.
	ended   ending
	endedAt time.Time
	endTick int
	absent  bool
	// answered is when the last question was asked that the hub has answered;
	// asking: an answer is wanted.
	answered int
	querying bool
	retry    retry
	// tag is that of the object as it was when its mark was tagged.
	tagged specFingerprint
	tag    codec.Tag
}

// ending is what an informer said of the end of a work.
type ending uint8

const (
	alive ending = iota
	// deleted: the hub sent that it was deleted.
	deleted
	// unseen: it is not in a new list of the hub, or another one has its name.
	// Nobody saw its deletion.
	unseen
)

// news is what an object of the informer is.
type news uint8

const (
	nothing news = iota
	// later than what was known.
	later
	// lags behind an answer of the hub.
	lags
	// contradicts what the hub itself said, or shows.
	contradicts
	// impossible in one life of a hub: an informer may be slow, but it does not go
	// back.
	impossible
)

// show takes an object of the informer.
func (h *hubObservation) show(o *workv1.ManifestWork, tick int, now time.Time) news {
	fell := h.shown != "" && olderVersion(o.ResourceVersion, h.shown)
	h.shown = o.ResourceVersion
	if h.ended == unseen { // a list lacked it, which is no evidence
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

// differs reports whether an object is another one under the same resource version.
func (h *hubObservation) differs(o *workv1.ManifestWork) bool {
	return h.object != nil && o.ResourceVersion == h.object.ResourceVersion && !fingerprintOf(o).equal(fingerprintOf(h.object))
}

// end takes the informer's word that the work is no more.
func (h *hubObservation) end(e ending, tick int, now time.Time) {
	h.ended, h.endTick, h.endedAt, h.lagging = e, tick, now, time.Time{}
	h.retry.reset()
}

// found takes an answer of the hub to what was asked at a tick. It returns why
// the hub cannot be the one it was, "" if it can.
func (h *hubObservation) found(o *workv1.ManifestWork, requests, tick int, now time.Time) (contradiction string) {
	known := h.object != nil && h.since < requests
	switch {
	case h.absent, h.ended == deleted && h.endTick < requests:
		return "the hub has a work again that was gone"
	case known && (olderThan(o, h.object) || o.Generation < h.object.Generation), h.differs(o):
		return "the hub has an older state of its works than before"
	case h.ended == deleted: // since it was asked
		return ""
	}
	h.ended = alive
	if h.object == nil || olderThan(h.object, o) {
		h.object, h.since = o, tick
	}
	h.confirmByHub(requests, now)
	return ""
}

// wrote takes the hub's answer to a write of ours. What was asked for meanwhile is
// still to be answered, and the informer is still to show the answer, unless it has shown
// that or what came of it already.
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

// listed takes the resource version under which a list of the hub has the work.
// It returns why the hub cannot be the one it was.
func (h *hubObservation) listed(version string, requests int, now time.Time) (contradiction string) {
	switch {
	case h.object == nil || h.since > requests || h.ended == deleted && h.endTick > requests:
		return "" // to be asked for
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

// confirmByHub takes it that the hub answered what was asked at a tick. As long as the informer
// shows something older it is asked again in a while: a hub that went back to what the
// informer showed last shows nothing new.
func (h *hubObservation) confirmByHub(requests int, now time.Time) {
	h.answered, h.querying, h.lagging = max(h.answered, requests), false, time.Time{}
	if h.shown != h.object.ResourceVersion {
		h.lagging = now
	}
	h.retry.reset()
}

// notThere takes it that the hub did not have the work at a tick. As long as the
// informer shows it all the same it is asked about again, for it may come back. Of what
// the informer never showed it cannot tell the end either.
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

// gone reports whether the deletion of a work was seen, and the hub says so too.
func (h *hubObservation) gone() bool { return h.ended != alive && h.absent }

// deleting reports whether the broker is to hear of a deletion.
func (h *hubObservation) deleting() bool {
	return h.ended != alive || h.object != nil && h.object.DeletionTimestamp != nil
}

// setTag notes the tag of an object.
func (h *hubObservation) setTag(o *workv1.ManifestWork, t codec.Tag) {
	h.tagged, h.tag = fingerprintOf(o), t
}

// untag takes it that what the broker has may have other finalizers than what was
// tagged.
func (h *hubObservation) untag() { h.tagged = specFingerprint{} }

func (h *hubObservation) isTagged() bool { return h.tagged.equal(fingerprintOf(h.object)) }

// fingerprint is what the broker is to have.
func (h *hubObservation) fingerprint() specFingerprint {
	m := fingerprintOf(h.object)
	m.deleting = m.deleting || h.ended != alive
	return m
}

// specFingerprint says whether two states of a work differ for the broker.
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

// olderThan compares resource versions. Ones that are no numbers are never
// older: what came last wins.
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
