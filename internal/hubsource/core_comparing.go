package hubsource

import (
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// stage says how far the comparison of a cluster has come.
type stage uint8

// The stages, in order. From notCompared on everything is published, as it is
// in the last five, where the comparison is past, or not fit to go by.
const (
	// notCompared: the cluster is not served, or the broker is not asked.
	notCompared stage = iota
	// wantsDigest: the broker has not said yet what it has in sum.
	wantsDigest
	// wantsTags: to compare the sums, the tags of the works are computed.
	wantsTags
	// waits: what is known is out of date; it is compared again in a while.
	waits
	// wantsRecords: the sums differ, or there are none to compare.
	wantsRecords
	// checksBehind: works that look older than their records are looked up.
	checksBehind
	// checksMissing: so are those that only the broker has, and deleted if it
	// is true.
	checksMissing
	// settled: all that follows from the comparison is done, but for publishing.
	settled
)

// judged reports whether it is known what differs.
func (s stage) judged() bool { return s == notCompared || s >= checksMissing }

// comparing is where the comparison of one cluster stands.
type comparing struct {
	stage stage
	// round tells results of what was begun for an earlier comparison.
	round int
	retry retry // of comparing again
	// open counts works that the broker has not accepted on this connection.
	open int

	digest   codec.Digest // the broker's, when the digests came
	untagged []*work
	asked    bool // for the records, with that request
	request  int
	records  []codec.InventoryRecord
	checks   int // works to be looked up

	// missing is what only the broker has and is still to be dealt with, of
	// candidates at first; live is how many records there were. Of the first
	// absent ones the hub said that it does not have them either. That counts when
	// it was asked afterwards where it is, for it may have gone back just before.
	missing          []codec.InventoryRecord
	candidates, live int
	absent           int
	// later: something only the broker has waits there behind a deletion.
	later bool
	// withheld are deletions that are left to a person, for a reason.
	withheld []codec.WithheldDeletion
	reason   string
	told     bool // the broker knows the outcome
}

// compared reports whether the broker may be told that the cluster is as the
// hub wants it.
func (k *comparing) compared(cl *cluster) bool {
	return cl.selected && k.stage == settled && k.open == 0 && len(k.withheld) == 0 && !k.later
}

// setStage moves a cluster on.
func (c *Core) setStage(cl *cluster, s stage) {
	was := cl.comparing.stage
	cl.comparing.stage = s
	if was.judged() == s.judged() {
		return
	}
	if c.comparison.unjudged += sign(!s.judged()); c.comparison.unjudged > 0 {
		return
	}
	for name, other := range c.clusters { // what waited for the last one
		if other.comparing.stage == checksMissing {
			c.cfg.Waker.Wake(SpecLane, Key{Cluster: name}, 0)
		}
	}
}

// enter begins the comparison of a cluster, if it is to be compared.
func (c *Core) enter(cl *cluster) {
	if !c.comparison.on || !c.connected || !cl.selected || cl.leaving() || cl.comparing.stage != notCompared {
		return
	}
	for _, w := range cl.works {
		c.setOpen(w, w.seen != nil && !w.confirmed)
	}
	if c.comparison.complete {
		c.wantRecords(cl) // the digests are of another time
		return
	}
	c.setStage(cl, wantsDigest)
}

// leave ends the comparison of a cluster, wherever it stands.
func (c *Core) leave(cl *cluster) {
	c.dropComparing(cl)
	cl.comparing.retry, cl.comparing.digest = retry{}, codec.Digest{}
	c.setStage(cl, notCompared)
	for _, w := range cl.works {
		c.setOpen(w, false)
	}
}

// dropComparing forgets what a comparison has found so far.
func (c *Core) dropComparing(cl *cluster) {
	k := &cl.comparing
	k.round++
	k.untagged, k.asked, k.records, k.missing, k.withheld, k.reason = nil, false, nil, nil, nil, ""
	k.candidates, k.live, k.absent, k.later, k.told = 0, 0, 0, false, false
	for _, w := range cl.works {
		w.spec.behind, w.spec.replaces = nil, false
	}
	k.checks = 0
}

// stillCompared reports whether a cluster without works must be kept.
func (c *Core) stillCompared(cl *cluster) bool {
	k := &cl.comparing
	return k.stage != notCompared && (k.stage != settled || !k.told || len(k.withheld) > 0)
}

// setOpen keeps the number of works that are not accepted yet.
func (c *Core) setOpen(w *work, open bool) {
	if w.open == open {
		return
	}
	w.open = open
	cl := c.clusters[w.cluster]
	if cl.comparing.open += sign(open); cl.comparing.open == 0 {
		c.tellSoon(cl)
	}
}

// accepted notes that the broker has the work as it is now.
func (c *Core) accepted(w *work) {
	if c.comparison.on {
		c.setOpen(w, false)
	}
}

// notAccepted notes that it has not.
func (c *Core) notAccepted(w *work) {
	if cl := c.clusters[w.cluster]; cl.comparing.stage != notCompared {
		c.setOpen(w, true)
	}
}

// digestCame takes what the broker has of a cluster in sum.
func (c *Core) digestCame(cl *cluster, d codec.Digest) {
	k := &cl.comparing
	k.digest = d
	if d.Count == 0 && len(cl.works) > 0 { // and there are deletions
		c.wantRecords(cl)
		return
	}
	for _, w := range cl.works {
		if o := c.comparable(w); o != nil && !w.spec.tagged.equal(markOf(o)) {
			k.untagged = append(k.untagged, w)
		}
	}
	c.setStage(cl, wantsTags)
	c.cfg.Waker.Wake(SpecLane, Key{Cluster: cl.name}, 0)
}

// nothingThere takes it that the broker has nothing of a cluster.
func (c *Core) nothingThere(cl *cluster) {
	for _, w := range cl.works {
		c.unheardOf(w)
		c.clear(w)
	}
	c.forgetMissing(cl)
	c.judged(cl)
	c.cfg.Waker.Wake(SpecLane, Key{}, 0)
}

// forgetMissing lets go of works whose absence has been taken into account.
func (c *Core) forgetMissing(cl *cluster) {
	for _, w := range cl.works {
		if w.missing && !w.spec.busy && !w.report.busy {
			c.forget(w)
		}
	}
}

// clear lets a work be published; it is handed out by Sweep.
func (c *Core) clear(w *work) {
	w.spec.clearedOn = c.conn
	c.sweep = append(c.sweep, Key{UID: w.uid})
}

// cleared reports whether the comparison lets a live work be published.
func (c *Core) cleared(w *work, cl *cluster) bool {
	return !c.comparison.on || w.spec.clearedOn == c.conn && cl.comparing.stage > wantsTags
}

// comparable returns the newest object of a work that has a tag, else nil.
func (c *Core) comparable(w *work) *workv1.ManifestWork {
	if w.seen == nil || w.gone {
		return nil
	}
	o := c.current(w)
	if o.DeletionTimestamp != nil || isLarge(o) {
		return nil
	}
	return o
}

func isLarge(o *workv1.ManifestWork) bool {
	return manifestwork.ManifestsSize(o) > manifestwork.MaxManifestsSize
}

// compareSeen takes what an object of the informer says about the comparison,
// before it takes the place of the one before.
func (c *Core) compareSeen(w *work, o *workv1.ManifestWork) {
	back := w.seen != nil && !w.fetched && (olderThan(o, w.seen) || o.Generation < w.seen.Generation)
	if back {
		c.wentBack("the hub shows an older state of its works than before")
		// Its generations are counted again: what was sent may have been another spec.
		c.backs++
		w.spec.sent, w.spec.sentOn, w.spec.refusedOn, w.spec.tagged = mark{}, 0, 0, mark{}
		w.own, w.lags, w.report.sequence = nil, false, "" // what was written last is there no more
		c.askFor(w)
	}
	c.moved(o)
	if c.comparison.on && c.connected && c.clusters[w.cluster].selected {
		c.comparePresent(w, o, back)
	}
}

// comparePresent does that where works are compared. back: the hub showed that it
// went back in time.
func (c *Core) comparePresent(w *work, o *workv1.ManifestWork, back bool) {
	old, cl := c.current(w), c.clusters[w.cluster]
	fresh := old == nil || w.gone
	if fresh && cl.comparing.lacks(string(w.uid)) {
		// It is there after all: nobody is to be asked whether it may be deleted.
		c.compareAgain(cl, missingDelay)
	}
	if fresh || back {
		c.setOpen(w, true)
	}
	if fresh || back || !markOf(old).equal(markOf(o)) {
		w.spec.clearedOn = c.conn // a fresh change waits for no records
	}
}

// nextComparing decides the next step of comparing a cluster.
func (c *Core) nextComparing(cl *cluster) Effect {
	if !c.comparison.on || !c.connected || cl.leaving() {
		return nil
	}
	switch cl.comparing.stage {
	case wantsTags:
		return c.nextTag(cl)
	case waits:
		if c.due(SpecLane, Key{Cluster: cl.name}, &cl.comparing.retry) {
			c.wantRecords(cl)
		}
	case checksMissing:
		return c.nextMissing(cl)
	case notCompared, wantsDigest, wantsRecords, checksBehind, settled:
	}
	return nil
}

// maxTagged is the number of works in one [Tag].
const maxTagged = 256

// nextTag decides which tags to compute. A work that changes meanwhile is not
// computed again: it differs from what the broker has, which is enough.
func (c *Core) nextTag(cl *cluster) Effect {
	k := &cl.comparing
	var works []*workv1.ManifestWork
	for len(k.untagged) > 0 && len(works) < maxTagged {
		w := k.untagged[0]
		k.untagged = k.untagged[1:]
		if o := c.comparable(w); o != nil && c.works[w.uid] == w && !w.spec.tagged.equal(markOf(o)) {
			works = append(works, o)
		}
	}
	if len(works) > 0 {
		return Tag{Works: works, cluster: cl.name, conn: c.conn, backs: c.backs}
	}
	k.untagged = nil
	c.compareDigest(cl)
	return nil
}

func (c *Core) doneTag(e Tag, r Result) {
	for i, o := range e.Works {
		if w := c.works[o.UID]; w != nil && e.backs == c.backs && i < len(r.Tags) && r.Tags[i] != (codec.Tag{}) {
			w.spec.tagged, w.spec.tag = markOf(o), r.Tags[i]
		}
	}
	if cl := c.clusters[e.cluster]; cl != nil && e.conn == c.conn {
		c.cfg.Waker.Wake(SpecLane, Key{Cluster: cl.name}, 0)
	}
}

// compareDigest compares the sums. Where they are equal, nothing is asked and
// nothing published.
func (c *Core) compareDigest(cl *cluster) {
	k := &cl.comparing
	var mine codec.Digest
	same := true
	for _, w := range cl.works {
		o := c.comparable(w)
		if o == nil {
			continue
		}
		if same = hasFinalizer(o) && w.spec.tagged.equal(markOf(o)); !same {
			break
		}
		mine.Count++
		mine.Sum = mine.Sum.Add(codec.RecordHash(string(w.uid), w.spec.tag))
	}
	if !same || mine != k.digest {
		c.wantRecords(cl)
		return
	}
	for _, w := range cl.works {
		if o := c.comparable(w); o != nil {
			c.inSync(w, o)
		}
	}
	c.forgetMissing(cl)
	c.setStage(cl, checksMissing) // of which there is none
	c.cfg.Waker.Wake(SpecLane, Key{Cluster: cl.name}, 0)
}

// inSync takes it that the broker has exactly this state of the work.
func (c *Core) inSync(w *work, o *workv1.ManifestWork) {
	s := &w.spec
	s.attempted, s.alive, s.sent, s.sentOn, s.refusedOn, s.staleRuns, s.retry = true, true, markOf(o), c.conn, 0, 0, retry{}
	c.setBlame(w, blame{known: true, status: w.blame.status})
	c.accepted(w)
	if c.deliveredMayDiffer(w, o) {
		c.wake(HubLane, w, 0)
	}
}

// wantRecords queues a cluster for the next request.
func (c *Core) wantRecords(cl *cluster) {
	c.dropComparing(cl)
	c.setStage(cl, wantsRecords)
	c.comparison.wanted = append(c.comparison.wanted, cl.name)
	c.cfg.Waker.Wake(SpecLane, Key{}, 0)
}

// compareAgain has a cluster compared once more, because what was known of the
// broker's records is no longer true; the more often the later.
func (c *Core) compareAgain(cl *cluster, least time.Duration) {
	if !c.comparison.on || !cl.selected || cl.comparing.stage <= waits || cl.leaving() {
		return // or it is about to be compared anyway
	}
	c.dropComparing(cl)
	c.setStage(cl, waits)
	c.failed(SpecLane, Key{Cluster: cl.name}, &cl.comparing.retry, least)
}
