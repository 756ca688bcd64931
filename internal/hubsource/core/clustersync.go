package core

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/resync"
	"github.com/hawser-io/hawser/pkg/codec"
)

// clusterSync compares the works of each cluster with the records of the broker. It compares the digests first.
// Where they differ, it compares the records one by one. The result is an observation of each work, and a list
// of the records without a work.
type clusterSync struct {
	f      *workIndex
	epochs *hubEpochs
	cursor *cursor

	// on: the inventory of the broker is requested. Otherwise all works are published.
	on bool
	// unjudged counts the clusters whose differences are not known yet.
	unjudged  int
	inventory inventory
	pending   pendingReports
}

// stage is the progress of the comparison of a cluster.
type stage uint8

// The stages, in order.
const (
	// stageNotCompared: the cluster is not served, or the broker's inventory is not requested.
	stageNotCompared stage = iota
	// stageWantsDigest: the broker has not sent its digest of the cluster yet.
	stageWantsDigest
	// stageWantsTags: the tags of the works are computed, to compare the digests.
	stageWantsTags
	// stageWaits: the result is out of date; the comparison is repeated after a delay.
	stageWaits
	// stageWantsRecords: the digests differ, or there are none.
	stageWantsRecords
	// stageAwaitsRecords: the records were requested from the broker.
	stageAwaitsRecords
	// stageDifferencesKnown: the records of the broker are known. Records without a work are looked up on the
	// hub, and deleted if the hub confirms that.
	stageDifferencesKnown
	// stageConcluded: all steps that follow from the comparison are done, except for publishes.
	stageConcluded
	// stageOutcomeReported: the broker has accepted the outcome.
	stageOutcomeReported
)

// isCompared reports whether the differences are known, or not compared at all.
func (s stage) isCompared() bool { return s == stageNotCompared || s >= stageDifferencesKnown }

// comparing is the state of the comparison of one cluster.
type comparing struct {
	stage stage
	// attempt separates results of an earlier comparison from those of the present one.
	attempt int
	retry   retry // of repeated comparisons

	digest   codec.Digest // of the broker, from the page of digests
	untagged []*work
	records  []codec.InventoryRecord
	missing  missing
}

// collect stores a record that the broker listed.
func (k *comparing) collect(r codec.InventoryRecord) { k.records = append(k.records, r) }

// isSynced reports whether the broker holds the works of the cluster as the hub has them, so that this may be
// reported.
func (k *comparing) isSynced(cl *cluster) bool {
	return cl.selected && k.stage >= stageConcluded && cl.open == 0 && k.missing.none() && cl.release.unknownObjects == 0
}

// outcome reports whether the outcome of the cluster may be reported to the broker.
func (k *comparing) outcome(cl *cluster) bool {
	return k.isSynced(cl) || cl.selected && k.stage >= stageConcluded && len(k.missing.withheld) > 0
}

// subscribe resets the comparison for a new subscription.
func (c *clusterSync) subscribe() {
	c.on = !c.f.ocmBroker
	c.inventory, c.pending = inventory{}, pendingReports{}
	c.epochs.locateOn(c.on || c.f.stateless)
}

// off records that this broker has no inventory.
func (c *clusterSync) off() { c.on, c.inventory = false, inventory{} }

// setStage sets the stage of a cluster and keeps the counts.
func (c *clusterSync) setStage(cl *cluster, s stage) {
	was := cl.comparing.stage
	cl.comparing.stage = s
	if was.isCompared() != s.isCompared() {
		if c.unjudged += sign(!s.isCompared()); c.unjudged == 0 {
			c.f.wakeCompared()
		}
	}
	if (was == stageNotCompared) != (s == stageNotCompared) {
		for _, w := range cl.works {
			c.f.recount(w)
		}
	}
	c.f.wakeCluster(BrokerQueue, cl)
}

// enter begins the comparison of a cluster.
func (c *clusterSync) enter(cl *cluster) {
	switch {
	case !c.on || !c.f.mayReport(cl) || cl.comparing.stage != stageNotCompared:
	case c.inventory.complete:
		c.wantRecords(cl) // the digests are from an earlier moment
	default:
		c.setStage(cl, stageWantsDigest)
	}
}

// leave ends the comparison of a cluster at any stage.
func (c *clusterSync) leave(cl *cluster) {
	c.drop(cl)
	cl.comparing.retry.reset()
	c.setStage(cl, stageNotCompared)
}

// drop forgets all results of a comparison.
func (c *clusterSync) drop(cl *cluster) {
	k := &cl.comparing
	*k = comparing{stage: k.stage, attempt: k.attempt + 1, retry: k.retry}
}

// repeat compares a cluster again, because known records of the broker are out of date. Each repetition waits
// longer.
func (c *clusterSync) repeat(cl *cluster, least time.Duration) {
	if !c.on || !cl.selected || cl.comparing.stage <= stageWaits || cl.release.pending() {
		return // no comparison is possible, or one is about to run anyway
	}
	c.drop(cl)
	c.setStage(cl, stageWaits)
	c.f.failed(BrokerQueue, cl.key(), &cl.comparing.retry, least)
}

// wantRecords queues a cluster for the next request.
func (c *clusterSync) wantRecords(cl *cluster) {
	c.drop(cl)
	c.setStage(cl, stageWantsRecords)
	c.inventory.want(cl.name)
	c.f.wake(BrokerQueue, Key{}, 0)
}

// digestCame stores the broker's digest of a cluster.
func (c *clusterSync) digestCame(cl *cluster, d codec.Digest) {
	k := &cl.comparing
	k.digest = d
	if d.Count == 0 && len(cl.works) > 0 { // an empty digest may stand for deletions only
		c.wantRecords(cl)
		return
	}
	k.untagged = cl.untagged()
	c.setStage(cl, stageWantsTags)
}

// next decides the next step of the comparison of a cluster.
func (c *clusterSync) next(cl *cluster) *todo {
	if !c.on || !c.f.mayReport(cl) {
		return nil
	}
	switch cl.comparing.stage {
	case stageWantsTags:
		return c.nextTag(cl)
	case stageWaits:
		if c.f.due(BrokerQueue, cl.key(), &cl.comparing.retry) {
			c.wantRecords(cl)
		}
	case stageDifferencesKnown:
		return c.nextMissing(cl)
	case stageConcluded:
		c.reportSoon(cl)
	case stageNotCompared, stageWantsDigest, stageWantsRecords, stageAwaitsRecords, stageOutcomeReported:
	}
	return nil
}

// maxTagged is the number of works in one [Tag].
const maxTagged = 256

// nextTag decides which tags to compute. A work that changes meanwhile is not tagged again: it differs from the
// record, and that is enough.
func (c *clusterSync) nextTag(cl *cluster) *todo {
	k := &cl.comparing
	if t := c.f.nextTag(cl, &k.untagged); t != nil {
		return t
	}
	c.compareDigest(cl)
	return nil
}

// nextTag decides which of the remaining works are tagged next.
func (f *workIndex) nextTag(cl *cluster, left *[]*work) *todo {
	var works []*workv1.ManifestWork
	for len(*left) > 0 && len(works) < maxTagged {
		w := (*left)[0]
		*left = (*left)[1:]
		if o := w.comparable(); o != nil && f.works[w.uid] == w && !w.hub.isTagged() {
			works = append(works, o)
		}
	}
	if len(works) == 0 {
		*left = nil
		return nil
	}
	return f.ofCluster(cl, Tag{Works: works}, func(r Result) { f.tagged(cl, works, r) })
}

// tagged stores the computed tags of works of a cluster.
func (f *workIndex) tagged(cl *cluster, works []*workv1.ManifestWork, r Result) {
	for i, o := range works {
		if w := f.works[o.UID]; w != nil && i < len(r.Tags) && r.Tags[i] != (codec.Tag{}) {
			w.hub.setTag(o, r.Tags[i])
		}
	}
	f.wakeCluster(BrokerQueue, cl)
}

// compareDigest compares the digests. If they are equal, no records are requested and nothing is published.
func (c *clusterSync) compareDigest(cl *cluster) {
	var mine codec.Digest
	same := true
	for _, w := range cl.works {
		if o := w.comparable(); o != nil {
			if same = hasFinalizer(o) && w.hub.isTagged(); !same {
				break
			}
			mine.Add(codec.RecordHash(string(w.uid), w.hub.tag))
		}
	}
	if !same || mine != cl.comparing.digest {
		c.wantRecords(cl)
		return
	}
	for _, w := range cl.works {
		switch {
		case w.comparable() != nil:
			c.inSync(w, c.inventory.digests)
		case w.hub.ended == deleted: // the digest covers live records only, so the record is not live
			w.broker.list(c.f.sub, c.inventory.digests, nil, c.f.tick())
			c.f.look(w.key())
		}
	}
	c.setStage(cl, stageDifferencesKnown) // equal digests: no work is missing
}

// inSync records that the broker holds exactly the present state of a work.
func (c *clusterSync) inSync(w *work, revision uint64) {
	w.broker.sync(c.f.sub, w.hub.fingerprint(), revision, c.f.tick())
	w.spec.setInSync()
	c.f.setSpecProblem(w, nil)
	c.f.recount(w)
	if deliveredMayDiffer(w) {
		c.f.wake(HubQueue, w.key(), 0)
	}
}

// compareRecords compares all records of a cluster, from a listing at a revision.
func (c *clusterSync) compareRecords(cl *cluster, revision uint64) {
	k := &cl.comparing
	rows := rowsOf(k.records)
	plan := resync.CompareWorks(c.read(cl, rows, revision), k.records)
	for _, id := range plan.InSync {
		if w := c.f.works[types.UID(id)]; hasFinalizer(w.hub.object) && w.broker.on(c.f.sub) == recordListed {
			c.inSync(w, rows[id].Revision)
		}
	}
	c.noteNames(cl, plan.Replacing, rows)
	for _, w := range cl.works {
		c.f.recount(w)
		if !w.isUpToDate(c.f.sub) {
			c.f.look(w.key())
		}
	}
	k.records = nil
	if k.missing.begin(plan) {
		c.epochs.readPositionNow()
	}
	for _, id := range plan.Replacing {
		k.missing.replacing = append(k.missing.replacing, cl.works[types.UID(id)])
	}
	c.setStage(cl, stageDifferencesKnown)
	c.f.wake(BrokerQueue, Key{}, 0)
}

// rowsOf returns the records by id. Of two records with one id, the one queued behind a deletion wins: it has
// no revision, and is the future state. Otherwise the later one wins.
func rowsOf(records []codec.InventoryRecord) map[string]*codec.InventoryRecord {
	rows := make(map[string]*codec.InventoryRecord, len(records))
	for i := range records {
		r := &records[i]
		if old := rows[r.ResourceID]; old == nil || r.Revision == 0 || old.Revision != 0 && old.Revision < r.Revision {
			rows[r.ResourceID] = r
		}
	}
	return rows
}

// read stores the listed state of the works of a cluster, and returns the works to compare with it. A work that
// vanished without an observed deletion counts as missing.
func (c *clusterSync) read(cl *cluster, rows map[string]*codec.InventoryRecord, revision uint64) []resync.Work {
	works := make([]resync.Work, 0, len(cl.works))
	for _, w := range cl.works {
		r := rows[string(w.uid)]
		if r != nil && w.spec.known() {
			c.cursor.request(w)
		}
		if w.hub.object == nil || w.hub.ended == unseen {
			continue
		}
		if w.broker.list(c.f.sub, revision, r, c.f.tick()) && r == nil {
			w.report.forgetSequence()
		}
		works = append(works, workOf(w))
	}
	return works
}

// noteNames records the works that take the name of another record, and those that lost their name to one. A
// publish from before a rollback of the hub may be in flight for long, and take a name late.
func (c *clusterSync) noteNames(cl *cluster, replacing []string, rows map[string]*codec.InventoryRecord) {
	if len(replacing) == 0 {
		return
	}
	since := map[string]uint64{}
	for _, r := range rows {
		if !r.Tombstone && cl.works[types.UID(r.ResourceID)] == nil {
			since[r.Name] = max(since[r.Name], r.Revision)
		}
	}
	for _, id := range replacing {
		w := cl.works[types.UID(id)]
		w.broker.replace(c.f.sub, since[w.name()], c.f.tick())
	}
}

// workOf returns a work in the form that the comparison uses.
func workOf(w *work) resync.Work {
	o, deleting := w.hub.object, w.hub.deleting()
	return resync.Work{
		ID: string(w.uid), Name: o.Name, Version: o.Generation,
		Tag: w.hub.tag, Untagged: !w.hub.isTagged(),
		Deleting: deleting, Unpublishable: !deleting && isLarge(o),
	}
}

// giveUpName repeats the comparison of a cluster if a work was to take the name of another record and is no
// longer published.
func (c *clusterSync) giveUpName(w *work) {
	if w.broker.sub == c.f.sub && w.broker.displaces {
		w.broker.forget()
		c.repeat(w.cl, 0)
	}
}

// forget drops all state of a work.
func (c *clusterSync) forget(w *work) {
	c.giveUpName(w)
	w.report.drop(c.f, c.cursor)
	if w.spec.isSending(c.f.sub) {
		w.cl.release.noteUnknown()
	}
	c.f.remove(w)
	c.reportSoon(w.cl)
	c.tidy(w.cl)
}

// miss leaves a work that vanished without an observed deletion to the comparison, which checks whether the hub
// went back in time. It waits until a new list is shown completely.
func (c *clusterSync) miss(w *work) {
	c.repeat(w.cl, missingDelay)
	c.forget(w)
}

const missingDelay = 5 * time.Second

// there records that the hub shows a work that was missing.
func (c *clusterSync) there(w *work) {
	if k := &w.cl.comparing; k.missing.has(string(w.uid)) {
		c.repeat(w.cl, missingDelay) // no operator has to approve its deletion
	}
}

// tidy drops a cluster without any known state.
func (c *clusterSync) tidy(cl *cluster) {
	k := &cl.comparing
	kept := cl.selected && !c.f.All || cl.release.pending() || cl.lists.requesting || cl.release.inFlight > 0 || len(cl.works) > 0 || cl.agent.waits() ||
		k.stage != stageNotCompared && (k.stage != stageOutcomeReported || len(k.missing.withheld) > 0)
	if !kept {
		cl.lists.repeat(c.cursor, false)
		delete(c.f.clusters, cl.name)
	}
}
