package core

import (
	"slices"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
)

// inventory is what the broker is asked for on a subscription.
type inventory struct {
	// request is what is asked for now, nil when nothing is; id names the event
	// that waits for its page until deadline, "" when it is to be sent (again).
	request  *codec.InventoryRequest
	id       string
	deadline time.Time
	retry    retry
	// revision is that of the listing; digests that of the one of digests.
	revision, digests uint64
	// complete: every digest has come. last is what the broker knows of the hub,
	// until that was judged.
	complete bool
	last     *codec.HubPosition
	// wanted are clusters whose records are to be asked for, in this order.
	wanted []string
}

// Bounds of one request for records: so many clusters, and as many records as
// far as the digests tell.
const (
	maxRequestedClusters = 100
	maxRequestedRecords  = 5000
)

// pageTimeout is how long a page may take before it is asked for again.
const pageTimeout = 30 * time.Second

func (v *inventory) want(cluster string) { v.wanted = append(v.wanted, cluster) }

// nextInventory decides about the request for what the broker has.
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

// wantedPage returns what to ask for next, nil when there is nothing.
func (c *clusterSync) wantedPage() *codec.InventoryRequest {
	v := &c.inventory
	if !v.complete {
		return &codec.InventoryRequest{}
	}
	var names []string
	records, n := uint64(0), 0
	for _, name := range v.wanted {
		cl := c.f.clusters[name]
		if cl != nil && cl.comparing.stage == wantsRecords {
			count := cl.comparing.digest.Count
			if len(names) > 0 && (len(names) == maxRequestedClusters || records+count > maxRequestedRecords) {
				break
			}
			records += count
			names = append(names, name)
			c.setStage(cl, awaitsRecords)
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

// publishEverything takes the answer that this broker does not tell what it
// has.
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

// expects reports whether somebody waits for a page (still).
func (c *clusterSync) expects(page codec.Inventory) bool {
	v := &c.inventory
	return c.on && c.f.connected && v.request != nil && v.id != "" && page.RequestID == v.id
}

// page takes a page of the broker's inventory that was expected.
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
		if cl := c.f.clusters[d.Cluster]; cl != nil && cl.comparing.stage == wantsDigest {
			c.digestCame(cl, d.Digest)
		}
	}
	if !last {
		return
	}
	v.complete = true
	for _, cl := range c.f.clusters {
		if cl.comparing.stage == wantsDigest {
			c.compareRecords(cl, v.digests) // the broker has nothing of it
		}
	}
	c.reportIn(reportAfter) // also where there is no cluster at all
	c.f.wakeCompared()
}

func (c *clusterSync) recordsCame(names []string, records []codec.InventoryRecord, last bool) {
	for _, r := range records {
		if cl := c.f.clusters[r.Cluster]; cl != nil && cl.comparing.stage == awaitsRecords && slices.Contains(names, r.Cluster) {
			cl.comparing.collect(r)
		}
	}
	if !last {
		return
	}
	for _, name := range names {
		if cl := c.f.clusters[name]; cl != nil && cl.comparing.stage == awaitsRecords {
			c.compareRecords(cl, c.inventory.revision)
		}
	}
}

// checkHubPosition compares, once, where the hub is with what the broker knows of it.
func (c *clusterSync) checkHubPosition() {
	if c.epochs.positionRead() {
		c.epochs.checkPosition(c.inventory.last)
		c.inventory.last = nil
	}
}

// located goes on when it is known where the hub is.
func (c *clusterSync) located() {
	c.checkHubPosition()
	c.f.wakeCompared()
	c.reportPosition()
	if !c.pending.at.IsZero() { // it waited for this
		c.f.wake(BrokerQueue, Key{}, 0)
	}
}
