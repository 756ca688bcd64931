package core

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/resync"
	"github.com/hawser-io/hawser/pkg/codec"
)

// clusterSync compares the works of each cluster with the broker's records of
// them: first the sums, and where these differ the records one by one. What a work
// is to the broker follows from its readings; here it is found out what the broker
// says, and what only the broker has.
type clusterSync struct {
	f      *workIndex
	epochs *hubEpochs
	cursor *cursor

	// on: the broker is asked what it has; else everything is published.
	on bool
	// unjudged counts the clusters of which it is not known yet what differs.
	unjudged  int
	inventory inventory
	pending   pendingReports
}

// stage says how far the comparison of a cluster has come.
type stage uint8

// The stages, in order.
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
	// awaitsRecords: the broker was asked for the records.
	awaitsRecords
	// differencesKnown: what the broker has is known. What only it has is looked up, and
	// deleted if it is true.
	differencesKnown
	// concluded: all that follows from the comparison is done, but for publishing.
	concluded
	// outcomeReported: the broker knows the outcome.
	outcomeReported
)

// isCompared reports whether it is known what differs.
func (s stage) isCompared() bool { return s == notCompared || s >= differencesKnown }

// comparing is where the comparison of one cluster stands.
type comparing struct {
	stage stage
	// attempt tells results of what was begun for an earlier comparison.
	attempt int
	retry   retry // of comparing again

	digest   codec.Digest // the broker's, when the digests came
	untagged []*work
	records  []codec.InventoryRecord
	missing  missing
}

// collect takes a record that the broker listed.
func (k *comparing) collect(r codec.InventoryRecord) { k.records = append(k.records, r) }

// isSynced reports whether the broker may be told that the cluster is as the
// hub wants it.
func (k *comparing) isSynced(cl *cluster) bool {
	return cl.selected && k.stage >= concluded && cl.open == 0 && k.missing.none() && cl.release.unknownObjects == 0
}

// outcome reports whether the broker may be told the outcome of the cluster.
func (k *comparing) outcome(cl *cluster) bool {
	return k.isSynced(cl) || cl.selected && k.stage >= concluded && len(k.missing.withheld) > 0
}

// subscribe begins anew with a subscription.
func (c *clusterSync) subscribe() {
	c.on = !c.f.ocmBroker
	c.inventory, c.pending = inventory{}, pendingReports{}
	c.epochs.locateOn(c.on || c.f.stateless)
}

// off takes it that the broker does not tell what it has.
func (c *clusterSync) off() { c.on, c.inventory = false, inventory{} }

// setStage moves a cluster on.
func (c *clusterSync) setStage(cl *cluster, s stage) {
	was := cl.comparing.stage
	cl.comparing.stage = s
	if was.isCompared() != s.isCompared() {
		if c.unjudged += sign(!s.isCompared()); c.unjudged == 0 {
			c.f.wakeCompared()
		}
	}
	if (was == notCompared) != (s == notCompared) {
		for _, w := range cl.works {
			c.f.recount(w)
		}
	}
	c.f.wakeCluster(BrokerQueue, cl)
}

// enter begins the comparison of a cluster.
func (c *clusterSync) enter(cl *cluster) {
	switch {
	case !c.on || !c.f.mayReport(cl) || cl.comparing.stage != notCompared:
	case c.inventory.complete:
		c.wantRecords(cl) // the digests are of another time
	default:
		c.setStage(cl, wantsDigest)
	}
}

// leave ends the comparison of a cluster, wherever it stands.
func (c *clusterSync) leave(cl *cluster) {
	c.drop(cl)
	cl.comparing.retry.reset()
	c.setStage(cl, notCompared)
}

// drop forgets what a comparison has found so far.
func (c *clusterSync) drop(cl *cluster) {
	k := &cl.comparing
	*k = comparing{stage: k.stage, attempt: k.attempt + 1, retry: k.retry}
}

// repeat has a cluster compared once more, because what was known of the
// broker's records is no longer true; the more often the later.
func (c *clusterSync) repeat(cl *cluster, least time.Duration) {
	if !c.on || !cl.selected || cl.comparing.stage <= waits || cl.release.pending() {
		return // or it is about to be compared anyway
	}
	c.drop(cl)
	c.setStage(cl, waits)
	c.f.failed(BrokerQueue, cl.key(), &cl.comparing.retry, least)
}

// wantRecords queues a cluster for the next request.
func (c *clusterSync) wantRecords(cl *cluster) {
	c.drop(cl)
	c.setStage(cl, wantsRecords)
	c.inventory.want(cl.name)
	c.f.wake(BrokerQueue, Key{}, 0)
}

// digestCame takes what the broker has of a cluster in sum.
func (c *clusterSync) digestCame(cl *cluster, d codec.Digest) {
	k := &cl.comparing
	k.digest = d
	if d.Count == 0 && len(cl.works) > 0 { // and there are deletions
		c.wantRecords(cl)
		return
	}
	k.untagged = cl.untagged()
	c.setStage(cl, wantsTags)
}

// next decides the next step of comparing a cluster.
func (c *clusterSync) next(cl *cluster) *todo {
	if !c.on || !c.f.mayReport(cl) {
		return nil
	}
	switch cl.comparing.stage {
	case wantsTags:
		return c.nextTag(cl)
	case waits:
		if c.f.due(BrokerQueue, cl.key(), &cl.comparing.retry) {
			c.wantRecords(cl)
		}
	case differencesKnown:
		return c.nextMissing(cl)
	case concluded:
		c.reportSoon(cl)
	case notCompared, wantsDigest, wantsRecords, awaitsRecords, outcomeReported:
	}
	return nil
}

// maxTagged is the number of works in one [Tag].
const maxTagged = 256

// nextTag decides which tags to compute. A work that changes meanwhile is not
// computed again: it differs from what the broker has, which is enough.
func (c *clusterSync) nextTag(cl *cluster) *todo {
	k := &cl.comparing
	if t := c.f.nextTag(cl, &k.untagged); t != nil {
		return t
	}
	c.compareDigest(cl)
	return nil
}

// nextTag decides which of the works that are left have their tags computed.
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

// tagged takes the tags of works of a cluster.
func (f *workIndex) tagged(cl *cluster, works []*workv1.ManifestWork, r Result) {
	for i, o := range works {
		if w := f.works[o.UID]; w != nil && i < len(r.Tags) && r.Tags[i] != (codec.Tag{}) {
			w.hub.setTag(o, r.Tags[i])
		}
	}
	f.wakeCluster(BrokerQueue, cl)
}

// compareDigest compares the sums. Where they are equal, nothing is asked and
// nothing published.
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
		case w.hub.ended == deleted: // and is not among what lives there
			w.broker.list(c.f.sub, c.inventory.digests, nil, c.f.tick())
			c.f.look(w.key())
		}
	}
	c.setStage(cl, differencesKnown) // and nothing is missing
}

// inSync takes it that the broker has exactly the present state of a work.
func (c *clusterSync) inSync(w *work, revision uint64) {
	w.broker.sync(c.f.sub, w.hub.fingerprint(), revision, c.f.tick())
	w.spec.agreed()
	c.f.setSpecProblem(w, nil)
	c.f.recount(w)
	if deliveredMayDiffer(w) {
		c.f.wake(HubQueue, w.key(), 0)
	}
}

// compareRecords takes the records of a cluster, all of which have come, in a listing at a
// revision.
func (c *clusterSync) compareRecords(cl *cluster, revision uint64) {
	k := &cl.comparing
	rows := rowsOf(k.records)
	plan := resync.CompareWorks(c.read(cl, rows, revision), k.records)
	for _, id := range plan.InSync {
		if w := c.f.works[types.UID(id)]; hasFinalizer(w.hub.object) && w.broker.on(c.f.sub) == listed {
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
	c.setStage(cl, differencesKnown)
	c.f.wake(BrokerQueue, Key{}, 0)
}

// rowsOf returns the records by id. Of two with one id that counts which waits behind
// a deletion (it has no revision), because it is what will be, else the later one.
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

// read takes what a listing says of the works of a cluster, and returns those that are
// to be compared with it. What nobody saw the deletion of counts as missing.
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

// noteNames takes note of works that take the name of another record, or that
// have lost their own to one: a publish of a work that was on the hub before it
// went back in time can be under way for long.
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

// workOf is a work as the comparison sees it.
func workOf(w *work) resync.Work {
	o, deleting := w.hub.object, w.hub.deleting()
	return resync.Work{
		ID: string(w.uid), Name: o.Name, Version: o.Generation,
		Tag: w.hub.tag, Untagged: !w.hub.isTagged(),
		Deleting: deleting, Unpublishable: !deleting && isLarge(o),
	}
}

// giveUpName has a cluster compared again when a work that was to take the name of
// another record is not published any more.
func (c *clusterSync) giveUpName(w *work) {
	if w.broker.sub == c.f.sub && w.broker.displaces {
		w.broker.forget()
		c.repeat(w.cl, 0)
	}
}

// forget drops everything about a work.
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

// miss leaves a work whose deletion nobody saw to the comparison, which has a way
// to see whether the hub is to be believed. It waits, so that all that a new list
// says is known by then.
func (c *clusterSync) miss(w *work) {
	c.repeat(w.cl, missingDelay)
	c.forget(w)
}

const missingDelay = 5 * time.Second

// there takes it that the hub shows a work that it did not.
func (c *clusterSync) there(w *work) {
	if k := &w.cl.comparing; k.missing.has(string(w.uid)) {
		c.repeat(w.cl, missingDelay) // nobody is to be asked whether it may be deleted
	}
}

// tidy drops a cluster that nothing is known about any more.
func (c *clusterSync) tidy(cl *cluster) {
	k := &cl.comparing
	kept := cl.selected && !c.f.All || cl.release.pending() || cl.lists.requesting || cl.release.inFlight > 0 || len(cl.works) > 0 || cl.agent.waits() ||
		k.stage != notCompared && (k.stage != outcomeReported || len(k.missing.withheld) > 0)
	if !kept {
		cl.lists.repeat(c.cursor, false)
		delete(c.f.clusters, cl.name)
	}
}
