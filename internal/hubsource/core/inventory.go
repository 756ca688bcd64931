package core

import (
	"slices"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
)

// inventory is the state of the requests for the broker's inventory on a subscription.
type inventory struct {
	// request is the current request, nil without one. id is the id of the sent event that waits for its page until
	// deadline. It is "" if the event has to be sent, or sent again.
	request  *codec.InventoryRequest
	id       string
	deadline time.Time
	retry    retry
	// revision is the revision of the listing, digests that of the listing of digests.
	revision, digests uint64
	// complete: all digests have come. last is the hub position that the broker knows, until it is checked.
	complete bool
	last     *codec.HubPosition
	// wanted are the clusters whose records are to be requested, in this order.
	wanted []string
}

// Limits of one request for records: the number of clusters, and the number of records according to the
// digests.
const (
	maxRequestedClusters = 100
	maxRequestedRecords  = 5000
)

// pageTimeout is how long a page may take before it is requested again.
const pageTimeout = 30 * time.Second

func (v *inventory) want(cluster string) { v.wanted = append(v.wanted, cluster) }

// nextInventory decides the next request for the broker's inventory.
func (c *clusterSync) nextInventory() *todo {
	v := &c.inventory
	if !c.on || !c.f.connected {
		return nil
	}
	if v.request == nil {
		v.request = c.wantedPage()
	}
	if v.request == nil || v.id != "" && c.f.until(BrokerQueue, Key{}, v.deadline) || !c.f.ready(Key{}, &v.retry) {
		return nil
	}
	v.id, v.deadline = c.f.NewID(), c.f.Now().Add(pageTimeout)
	id := v.id
	return &todo{RequestInventory{ID: id, Request: *v.request}, func(r Result) { c.doneRequestInventory(id, r) }}
}

// wantedPage returns the next request, nil if there is none.
func (c *clusterSync) wantedPage() *codec.InventoryRequest {
	v := &c.inventory
	if !v.complete {
		return &codec.InventoryRequest{}
	}
	var names []string
	records, n := uint64(0), 0
	for _, name := range v.wanted {
		cl := c.f.clusters[name]
		if cl != nil && cl.comparing.stage == stageWantsRecords {
			count := cl.comparing.digest.Count
			if len(names) > 0 && (len(names) == maxRequestedClusters || records+count > maxRequestedRecords) {
				break
			}
			records += count
			names = append(names, name)
			c.setStage(cl, stageAwaitsRecords)
		}
		n++
	}
	if v.wanted = v.wanted[n:]; len(v.wanted) == 0 {
		v.wanted = nil
	}
	if len(names) == 0 {
		return nil
	}
	return &codec.InventoryRequest{Clusters: names}
}

func (c *clusterSync) doneRequestInventory(id string, r Result) {
	v := &c.inventory
	switch {
	case id != v.id: // its page has come already
	case r.Err == nil:
		c.f.wakeAt(BrokerQueue, Key{}, v.deadline)
	case c.f.brokerFailed(Key{}, &v.retry, r.Err):
		v.id = ""
	default:
		c.publishEverything()
	}
}

// publishEverything publishes all works, because this broker has no inventory.
func (c *clusterSync) publishEverything() {
	c.off()
	for _, cl := range c.f.clusters {
		c.leave(cl)
		for _, w := range cl.works {
			if cl.selected {
				c.f.look(w.key())
			}
		}
	}
	c.f.wake(BrokerQueue, Key{}, 0)
}

// expects reports whether a page answers the current request.
func (c *clusterSync) expects(page codec.Inventory) bool {
	v := &c.inventory
	return c.on && c.f.connected && v.request != nil && v.id != "" && page.RequestID == v.id
}

// page handles an expected page of the broker's inventory.
func (c *clusterSync) page(page codec.Inventory) {
	v := &c.inventory
	first, last := v.request.PageToken == "", page.NextPageToken == ""
	v.id = ""
	v.retry.reset()
	if first {
		v.revision = page.Revision
	}
	names := v.request.Clusters
	if v.request.PageToken = page.NextPageToken; last {
		v.request = nil
	}
	if len(names) == 0 {
		c.digestsCame(page, first, last)
	} else {
		c.recordsCame(names, page.Records, last)
	}
	c.f.wake(BrokerQueue, Key{}, 0)
}

func (c *clusterSync) digestsCame(page codec.Inventory, first, last bool) {
	v := &c.inventory
	if first {
		v.last, v.digests = page.LastPosition, page.Revision
		c.epochs.checkStore(page.LastPosition)
		c.checkHubPosition()
	}
	for _, d := range page.Clusters {
		if cl := c.f.clusters[d.Cluster]; cl != nil && cl.comparing.stage == stageWantsDigest {
			c.digestCame(cl, d.Digest)
		}
	}
	if !last {
		return
	}
	v.complete = true
	for _, cl := range c.f.clusters {
		if cl.comparing.stage == stageWantsDigest {
			c.compareRecords(cl, v.digests) // the broker has no records of the cluster
		}
	}
	c.reportIn(reportAfter) // a report goes out even if there is no cluster
	c.f.wakeCompared()
}

func (c *clusterSync) recordsCame(names []string, records []codec.InventoryRecord, last bool) {
	for _, r := range records {
		if cl := c.f.clusters[r.Cluster]; cl != nil && cl.comparing.stage == stageAwaitsRecords && slices.Contains(names, r.Cluster) {
			cl.comparing.collect(r)
		}
	}
	if !last {
		return
	}
	for _, name := range names {
		if cl := c.f.clusters[name]; cl != nil && cl.comparing.stage == stageAwaitsRecords {
			c.compareRecords(cl, c.inventory.revision)
		}
	}
}

// checkHubPosition compares the position of the hub, once, with the one that the broker knows.
func (c *clusterSync) checkHubPosition() {
	if c.epochs.positionRead() {
		c.epochs.checkPosition(c.inventory.last)
		c.inventory.last = nil
	}
}

// located continues when the position of the hub is known.
func (c *clusterSync) located() {
	c.checkHubPosition()
	c.f.wakeCompared()
	c.reportPosition()
	if !c.pending.at.IsZero() { // the report waited for the position
		c.f.wake(BrokerQueue, Key{}, 0)
	}
}
