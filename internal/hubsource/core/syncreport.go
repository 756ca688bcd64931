package core

import (
	"maps"
	"slices"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
)

// pendingReports is the state of the sync reports to the broker.
type pendingReports struct {
	// at is when the next report is due, zero for never. It is a little later than now, so that clusters which
	// finish together go into one report.
	at    time.Time
	retry retry
	// busy: a report is in flight. Releases wait for the answer, so that the report still describes the clusters as
	// they are then.
	busy bool
	// all: the broker knows that all clusters were compared. position is the last position reported on this
	// connection.
	all      bool
	position *codec.HubPosition
}

// reportAfter is how long the report of a compared cluster waits for others.
const reportAfter = 2 * time.Second

// Limits of one sync report. The outcome of one cluster is not divided. Withheld deletions beyond the limit are
// listed when others of the cluster are decided.
const (
	maxReportedClusters = 500
	maxReportedWithheld = 1500
)

// reportSoon plans a report of a cluster, if it has an outcome to report.
func (c *clusterSync) reportSoon(cl *cluster) {
	k := &cl.comparing
	if !c.on || k.stage == stageOutcomeReported || !k.outcome(cl) {
		return
	}
	if cl.open == 0 {
		k.retry.reset()
	}
	c.reportIn(reportAfter)
}

// reportPosition plans a report if the position is new, or if a rollback suspicion may end with it.
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

// isReporting reports whether a sync report is in flight.
func (c *clusterSync) isReporting() bool { return c.pending.busy }

// nextSyncReport decides the next sync report. It waits for the position of the hub. Without an answer of the
// hub, works that the informers have not shown cannot be published. Agents would evict such works after the
// report.
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
	if c.clean() { // the broker knows the position too
		c.epochs.clearAllSuspicions(t.position)
	}
	return nil
}

// outcomes collects the outcomes to report now; all: no others are left.
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

// ends returns the clusters with an unreported outcome, the clusters with withheld deletions, and whether all
// clusters are done.
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
		if cl.comparing.stage != stageOutcomeReported {
			unreported = append(unreported, cl)
		}
	}
	return unreported, withheld, done
}

// clean reports whether nothing is missing on any cluster, and the hub's position is valid.
func (c *clusterSync) clean() bool {
	if !c.inventory.complete || !c.epochs.positionRead() || c.f.behind > 0 {
		return false
	}
	for _, cl := range c.f.clusters {
		if k := &cl.comparing; cl.selected && (k.stage < stageConcluded || !k.missing.isFinal(c.f.sub) || cl.release.unknownObjects > 0) {
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

// doneSendSyncReport handles the answer to a report; all: it contained all outcomes.
func (c *clusterSync) doneSendSyncReport(o codec.SyncReport, all bool, r Result) {
	if isOpen(r.Err) { // a late report would apply to a later state
		c.f.endSubscription()
		return
	}
	t := &c.pending
	t.busy = false
	for _, cl := range c.f.clusters { // the release waited for the answer
		if cl.release.must {
			c.f.wakeCluster(BrokerQueue, cl)
		}
	}
	if c.f.brokerFailed(Key{}, &t.retry, r.Err) {
		return
	}
	// If the broker refused it, the next subscription reports it again.
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
	for _, cl := range c.f.clusters { // other clusters may have finished since the report began
		c.reportSoon(cl)
	}
	c.reportPosition()
	c.f.wake(BrokerQueue, Key{}, 0)
}

// markReported records what the broker knows now, unless it has changed since.
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
			c.setStage(cl, stageOutcomeReported)
			c.tidy(cl)
		}
	}
}
