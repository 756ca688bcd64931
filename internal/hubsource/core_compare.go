package hubsource

import (
	"slices"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// comparison is where comparing with the broker stands on this connection: what
// concerns all clusters. What concerns one is in comparing.
type comparison struct {
	// on: the broker is asked what it has; else everything is published.
	on bool
	// unjudged counts the clusters of which it is not known yet what differs.
	unjudged int

	// request is what is asked for now, nil when nothing is; id names the event
	// that waits for its page until deadline, "" when it is to be sent (again).
	request  *codec.InventoryRequest
	id       string
	deadline time.Time
	retry    retry
	// complete: every digest has come. last is what the broker knows of the hub.
	complete bool
	last     *codec.HubPosition
	// wanted are clusters whose records are to be asked for, in this order.
	wanted []string

	tell tell
}

// Bounds of one request for records: so many clusters, and as many records as
// far as the digests tell.
const (
	maxAskedClusters = 100
	maxAskedRecords  = 5000
)

// pageTimeout is how long a page may take before it is asked for again.
const pageTimeout = 30 * time.Second

// beginComparison starts anew with a connection.
func (c *Core) beginComparison() {
	c.comparison = comparison{on: !c.stock && c.cfg.NewID != nil, unjudged: c.comparison.unjudged}
	c.keep.due = c.comparison.on
}

// nextInventory decides about the request for what the broker has.
func (c *Core) nextInventory() Effect {
	v := &c.comparison
	if !v.on || !c.connected {
		return nil
	}
	if v.request == nil {
		v.request = c.wantedPage()
	}
	now := c.cfg.Now()
	switch {
	case v.request == nil:
		return nil
	case v.id != "" && now.Before(v.deadline):
		c.cfg.Waker.Wake(SpecLane, Key{}, v.deadline.Sub(now))
		return nil
	case c.pausedUntil.After(now):
		c.cfg.Waker.Wake(SpecLane, Key{}, c.pausedUntil.Sub(now))
		return nil
	case !c.due(SpecLane, Key{}, &v.retry):
		return nil
	}
	v.id, v.deadline = c.cfg.NewID(), now.Add(pageTimeout)
	return AskInventory{ID: v.id, Request: *v.request, conn: c.conn}
}

// wantedPage returns what to ask for next, nil when there is nothing.
func (c *Core) wantedPage() *codec.InventoryRequest {
	v := &c.comparison
	if !v.complete {
		return &codec.InventoryRequest{}
	}
	var names []string
	records, n := uint64(0), 0
	c.requests++
	for _, name := range v.wanted {
		cl := c.clusters[name]
		if cl != nil && cl.comparing.stage == wantsRecords && !cl.comparing.asked {
			count := cl.comparing.digest.Count
			if len(names) > 0 && (len(names) == maxAskedClusters || records+count > maxAskedRecords) {
				break
			}
			records += count
			names = append(names, name)
			cl.comparing.asked, cl.comparing.request = true, c.requests
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

func (c *Core) doneAskInventory(e AskInventory, r Result) {
	v := &c.comparison
	switch {
	case e.conn != c.conn || e.ID != v.id: // its page has come already
	case r.Err == nil:
		c.cfg.Waker.Wake(SpecLane, Key{}, max(0, v.deadline.Sub(c.cfg.Now())))
	case transport.Retryable(r.Err):
		v.id = ""
		c.brokerFailed(Key{}, &v.retry, r.Err)
	default:
		c.publishEverything()
	}
}

// brokerFailed plans the next attempt of a request to the broker.
func (c *Core) brokerFailed(key Key, r *retry, err error) {
	delay := brokerDelay(err)
	if transport.CodeOf(err) == transport.CodeOverloaded && delay > 0 {
		c.pausedUntil = c.cfg.Now().Add(delay)
		c.cfg.Waker.Wake(SpecLane, Key{}, delay)
	}
	c.failed(SpecLane, key, r, delay)
}

// publishEverything takes the answer that this broker does not tell what it
// has.
func (c *Core) publishEverything() {
	v := &c.comparison
	v.on, v.request, v.wanted = false, nil, nil
	for _, cl := range c.clusters {
		c.leave(cl)
		if !cl.selected {
			continue
		}
		for uid, w := range cl.works {
			if w.spec.sentOn != c.conn {
				c.sweep = append(c.sweep, Key{UID: uid})
			}
		}
	}
	c.cfg.Waker.Wake(SpecLane, Key{}, 0)
}

// Compares reports whether the works are compared with what the broker of this
// connection has, or simply all published.
func (c *Core) Compares() bool { return c.comparison.on }

// Inventory takes a page of the broker's inventory. It returns false for one
// that nobody waits for (any more); such a page is dropped.
func (c *Core) Inventory(page codec.Inventory) bool {
	v := &c.comparison
	if !v.on || !c.connected || v.request == nil || v.id == "" || page.RequestID != v.id {
		return false
	}
	v.id, v.retry = "", retry{}
	first, last := v.request.PageToken == "", page.NextPageToken == ""
	asked := v.request.Clusters
	if v.request.PageToken = page.NextPageToken; last {
		v.request = nil
	}
	if len(asked) == 0 {
		c.takeDigests(page, first, last)
	} else {
		c.takeRecords(asked, page.Records, last)
	}
	c.cfg.Waker.Wake(SpecLane, Key{}, 0)
	return true
}

func (c *Core) takeDigests(page codec.Inventory, first, last bool) {
	v := &c.comparison
	if first {
		v.last = page.LastPosition
		c.judgeStore(page.LastPosition)
		c.judgeHub()
	}
	for _, d := range page.Clusters {
		if d.Cluster == "" {
			continue
		}
		// One that nobody here knew is compared too where all are served, and
		// else released: an earlier process served it.
		cl := c.cluster(d.Cluster)
		if cl.comparing.stage == wantsDigest {
			c.digestCame(cl, d.Digest)
		}
	}
	if !last {
		return
	}
	v.complete = true
	for _, cl := range c.clusters {
		if cl.comparing.stage == wantsDigest {
			c.nothingThere(cl)
		}
	}
	c.tellIn(tellAfter) // also where there is no cluster at all
}

func (c *Core) takeRecords(asked []string, records []codec.InventoryRecord, last bool) {
	for _, r := range records {
		if cl := c.clusters[r.Cluster]; cl != nil && cl.comparing.asked && slices.Contains(asked, r.Cluster) {
			cl.comparing.records = append(cl.comparing.records, r)
		}
	}
	if !last {
		return
	}
	for _, name := range asked {
		if cl := c.clusters[name]; cl != nil && cl.comparing.asked {
			c.judge(cl)
		}
	}
}
