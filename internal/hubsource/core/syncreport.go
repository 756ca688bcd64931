package core

import (
	"maps"
	"slices"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
)

// pendingReports is what the broker is still to be told of comparisons.
type pendingReports struct {
	// at is when; the zero time is never. A little later than at once, so that
	// clusters which come to an end together are told together.
	at    time.Time
	retry retry
	// busy: it is being told. Releases wait for the answer, so that it is still about
	// the clusters as they are then.
	busy bool
	// all: the broker knows that all clusters were compared. position is the
	// one it was told last on this connection.
	all      bool
	position *codec.HubPosition
}

// reportAfter is how long a cluster that is compared waits for others.
const reportAfter = 2 * time.Second

// Bounds of one event of outcomes: one of a cluster is not divided, so what is
// withheld there beyond the bound is listed when something of it was settled.
const (
	maxReportedClusters = 500
	maxReportedWithheld = 1500
)

// reportSoon has the broker told of a cluster, if there is something to tell.
func (c *clusterSync) reportSoon(cl *cluster) {
	k := &cl.comparing
	if !c.on || k.stage == outcomeReported || !k.outcome(cl) {
		return
	}
	if cl.open == 0 {
		k.retry.reset()
	}
	c.reportIn(reportAfter)
}

// reportPosition has the broker told of a new position, if there is one, or the
// doubt ended that the present one cast.
func (c *clusterSync) reportPosition() {
	if c.inventory.complete && (!samePosition(c.pending.position, c.epochs.position) || c.epochs.isSuspected()) {
		c.reportIn(reportAfter)
	}
}

func (c *clusterSync) reportIn(d time.Duration) {
	if t := &c.pending; t.at.IsZero() {
		t.at = c.f.Now().Add(d)
		c.f.wake(BrokerQueue, Key{}, d)
	}
}

// isReporting reports whether the broker is being told of comparisons.
func (c *clusterSync) isReporting() bool { return c.pending.busy }

// nextSyncReport decides about telling the broker what was compared. A hub that does not
// say where it is answers no question about a work either: what its informers have not
// shown yet could not be published before agents evict it.
func (c *clusterSync) nextSyncReport() *todo {
	t := &c.pending
	if !c.on || !c.f.connected || !c.epochs.positionRead() || t.at.IsZero() || t.busy || c.f.until(BrokerQueue, Key{}, t.at) || !c.f.due(BrokerQueue, Key{}, &t.retry) {
		return nil
	}
	o, all := c.outcomes()
	if len(o.Clusters) > 0 || o.Position != nil || o.AllClusters {
		t.busy = true
		return &todo{SendSyncReport{Report: o, Fence: c.f.nextOrder()}, func(r Result) { c.doneSendSyncReport(o, all, r) }}
	}
	t.at = time.Time{}
	if c.clean() { // and the broker knows the position
		c.epochs.clearAllSuspicions(t.position)
	}
	return nil
}

// outcomes collects what the broker is to be told now, and whether that is all.
func (c *clusterSync) outcomes() (o codec.SyncReport, all bool) {
	unreported, withheld, done := c.ends()
	o.AllClusters = c.f.All && done && !c.pending.all && fits(withheld)
	if o.AllClusters {
		unreported = withheld
	}
	all = fits(unreported)
	for _, cl := range unreported {
		if len(o.Clusters) > 0 && !fits(unreported[:len(o.Clusters)+1]) {
			break
		}
		o.Clusters = append(o.Clusters, cl.outcomeOf())
	}
	if all && c.clean() && !samePosition(c.pending.position, c.epochs.position) {
		o.Position = c.epochs.position
	}
	return o, all
}

// ends returns the clusters of which there is something to tell, those with
// withheld deletions, and whether all clusters are done.
func (c *clusterSync) ends() (unreported, withheld []*cluster, done bool) {
	done = c.inventory.complete
	for _, name := range slices.Sorted(maps.Keys(c.f.clusters)) {
		cl := c.f.clusters[name]
		if !cl.selected {
			continue
		}
		if !cl.comparing.outcome(cl) {
			done = false
			continue
		}
		if len(cl.comparing.missing.withheld) > 0 {
			withheld = append(withheld, cl)
		}
		if cl.comparing.stage != outcomeReported {
			unreported = append(unreported, cl)
		}
	}
	return unreported, withheld, done
}

// clean reports whether nothing is missing on any cluster, and the hub's
// position is to be believed.
func (c *clusterSync) clean() bool {
	if !c.inventory.complete || !c.epochs.positionRead() || c.f.behind > 0 {
		return false
	}
	for _, cl := range c.f.clusters {
		if k := &cl.comparing; cl.selected && (k.stage < concluded || !k.missing.isFinal(c.f.sub) || cl.release.unknownObjects > 0) {
			return false
		}
	}
	return true
}

// fits reports whether the outcomes of clusters fit into one event.
func fits(clusters []*cluster) bool {
	withheld := 0
	for _, cl := range clusters {
		withheld += len(cl.comparing.missing.withheld)
	}
	return len(clusters) <= maxReportedClusters && withheld <= maxReportedWithheld
}

func (cl *cluster) outcomeOf() codec.ClusterSyncReport {
	k := &cl.comparing
	return codec.ClusterSyncReport{Cluster: cl.name, Withheld: k.missing.withheld[:min(len(k.missing.withheld), maxReportedWithheld)], Reason: k.missing.reason}
}

// doneSendSyncReport takes the answer to what the broker was told; all: nothing else was to be.
func (c *clusterSync) doneSendSyncReport(o codec.SyncReport, all bool, r Result) {
	if isOpen(r.Err) { // late, it would count for what is so then
		c.f.endSubscription()
		return
	}
	t := &c.pending
	t.busy = false
	for _, cl := range c.f.clusters { // that waited for the answer
		if cl.release.must {
			c.f.wakeCluster(BrokerQueue, cl)
		}
	}
	if c.f.brokerFailed(Key{}, &t.retry, r.Err) {
		return
	}
	// Where the broker refused it, the next subscription tells it again.
	c.f.ends.reset()
	t.retry.reset()
	t.all = t.all || o.AllClusters
	if o.Position != nil {
		t.position = o.Position
		if r.Err == nil && c.clean() {
			c.epochs.clearAllSuspicions(t.position)
		}
	}
	c.markReported(o)
	if all {
		t.at = time.Time{}
	}
	for _, cl := range c.f.clusters { // more may have come to an end meanwhile
		c.reportSoon(cl)
	}
	c.reportPosition()
	c.f.wake(BrokerQueue, Key{}, 0)
}

// markReported notes what the broker knows, unless it is no longer so.
func (c *clusterSync) markReported(o codec.SyncReport) {
	names := make([]string, 0, len(o.Clusters))
	for _, cl := range o.Clusters {
		names = append(names, cl.Cluster)
	}
	if o.AllClusters {
		names = slices.Collect(maps.Keys(c.f.clusters))
	}
	for _, name := range names {
		if cl := c.f.clusters[name]; cl != nil && cl.comparing.outcome(cl) {
			c.setStage(cl, outcomeReported)
			c.tidy(cl)
		}
	}
}
