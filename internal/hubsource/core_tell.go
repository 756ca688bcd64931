package hubsource

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// tell is what the broker is still to be told of comparisons.
type tell struct {
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

// tellAfter is how long a cluster that is compared waits for others.
const tellAfter = 2 * time.Second

// Bounds of one event of outcomes: one of a cluster is not divided, so what is
// withheld there beyond the bound is listed when something of it was settled.
const (
	maxToldClusters = 500
	maxToldWithheld = 1500
)

// tellSoon has the broker told of a cluster, if there is something to tell.
func (c *Core) tellSoon(cl *cluster) {
	k := &cl.comparing
	if !c.comparison.on || k.told || !k.outcome(cl) {
		return
	}
	if k.open == 0 {
		k.retry = retry{}
	}
	c.tellIn(tellAfter)
}

// tellPosition has the broker told of a new position, if there is one, or the
// doubt ended that the present one cast.
func (c *Core) tellPosition() {
	fresh := !samePosition(c.comparison.tell.position, c.keep.position)
	if c.comparison.complete && (fresh || len(c.keep.withheld) > 0) {
		c.tellIn(tellAfter)
	}
}

func (c *Core) tellIn(d time.Duration) {
	if t := &c.comparison.tell; t.at.IsZero() {
		t.at = c.cfg.Now().Add(d)
		c.cfg.Waker.Wake(SpecLane, Key{}, d)
	}
}

// outcome reports whether the broker may be told the outcome of the cluster.
func (k *comparing) outcome(cl *cluster) bool {
	return k.compared(cl) || cl.selected && k.stage == settled && len(k.withheld) > 0
}

// nextCompared decides about telling the broker what was compared.
func (c *Core) nextCompared() Effect {
	t := &c.comparison.tell
	if !c.comparison.on || !c.connected || t.at.IsZero() {
		return nil
	}
	if d := t.at.Sub(c.cfg.Now()); d > 0 {
		c.cfg.Waker.Wake(SpecLane, Key{}, d)
		return nil
	}
	if !c.due(SpecLane, Key{}, &t.retry) {
		return nil
	}
	told, all := c.outcomes()
	switch calm := c.keep.calm.Sub(c.cfg.Now()); {
	case len(told.Clusters) > 0 || told.Position != nil || told.AllClusters:
		t.busy = true
		return SendCompared{Compared: told, Order: c.nextOrder(), all: all, conn: c.conn}
	case calm > 0: // the position has to wait
		t.at = c.keep.calm
		c.cfg.Waker.Wake(SpecLane, Key{}, calm)
	default:
		t.at = time.Time{}
		c.trustAll() // where the broker knows the position
	}
	return nil
}

// outcomes collects what the broker is to be told now, and whether that is all.
func (c *Core) outcomes() (told codec.Compared, all bool) {
	untold, withheld, done := c.ends()
	told.AllClusters = c.cfg.All && done && !c.comparison.tell.all && fits(withheld)
	if told.AllClusters {
		untold = withheld
	}
	all = fits(untold)
	for _, cl := range untold {
		if len(told.Clusters) > 0 && !fits(untold[:len(told.Clusters)+1]) {
			break
		}
		told.Clusters = append(told.Clusters, cl.outcomeOf())
	}
	if all && c.clean() && !samePosition(c.comparison.tell.position, c.keep.position) {
		told.Position = c.keep.position
	}
	return told, all
}

// ends returns the clusters of which there is something to tell, those with
// withheld deletions, and whether all clusters are done.
func (c *Core) ends() (untold, withheld []*cluster, done bool) {
	done = c.comparison.complete
	for _, name := range slices.Sorted(maps.Keys(c.clusters)) {
		cl := c.clusters[name]
		if !cl.selected {
			continue
		}
		if !cl.comparing.outcome(cl) {
			done = false
			continue
		}
		if len(cl.comparing.withheld) > 0 {
			withheld = append(withheld, cl)
		}
		if !cl.comparing.told {
			untold = append(untold, cl)
		}
	}
	return untold, withheld, done
}

// clean reports whether nothing is missing on any cluster, and the hub's
// position is to be believed.
func (c *Core) clean() bool {
	if !c.located() || c.keep.missing > 0 || c.cfg.Now().Before(c.keep.calm) {
		return false
	}
	for _, cl := range c.clusters {
		if k := &cl.comparing; cl.selected && (k.stage != settled || k.later || len(k.withheld) > 0) {
			return false
		}
	}
	return true
}

// fits reports whether the outcomes of clusters fit into one event.
func fits(clusters []*cluster) bool {
	withheld := 0
	for _, cl := range clusters {
		withheld += len(cl.comparing.withheld)
	}
	return len(clusters) <= maxToldClusters && withheld <= maxToldWithheld
}

func (cl *cluster) outcomeOf() codec.ClusterComparison {
	k := &cl.comparing
	return codec.ClusterComparison{Cluster: cl.name, Withheld: k.withheld[:min(len(k.withheld), maxToldWithheld)], Reason: k.reason}
}

func (c *Core) doneSendCompared(e SendCompared, r Result) {
	if e.conn != c.conn {
		return
	}
	t := &c.comparison.tell
	t.busy = false
	c.wakeReleases()
	if r.Err != nil && transport.Retryable(r.Err) {
		c.brokerFailed(Key{}, &t.retry, r.Err)
		return
	}
	// Where the broker refused it, the next connection tells it again.
	t.retry = retry{}
	t.all = t.all || e.Compared.AllClusters
	if e.Compared.Position != nil {
		t.position = e.Compared.Position
		if r.Err == nil {
			c.trustAll()
		}
	}
	c.markTold(e.Compared)
	if e.all {
		t.at = time.Time{}
	}
	for _, cl := range c.clusters { // more may have come to an end meanwhile
		c.tellSoon(cl)
	}
	c.tellPosition()
	c.cfg.Waker.Wake(SpecLane, Key{}, 0)
}

// markTold notes what the broker knows, unless it is no longer so.
func (c *Core) markTold(told codec.Compared) {
	names := make([]string, 0, len(told.Clusters))
	for _, o := range told.Clusters {
		names = append(names, o.Cluster)
	}
	if told.AllClusters {
		names = slices.Collect(maps.Keys(c.clusters))
	}
	for _, name := range names {
		if cl := c.clusters[name]; cl != nil && cl.comparing.outcome(cl) {
			cl.comparing.told = true
			c.tidy(cl)
		}
	}
}

// trustAll ends all doubt if nothing is missing anywhere and informers show nothing
// that the hub went back behind. The broker knows where the hub is now.
func (c *Core) trustAll() {
	switch {
	case !c.clean():
		return
	case len(c.keep.withheld) > 0 && c.showsFuture():
		c.tellIn(locateEvery) // nobody says when the informers list anew
		return
	}
	if c.keep.withheld[everywhere] {
		c.keep.settled = c.comparison.tell.position
	}
	if len(c.keep.withheld) > 0 {
		clear(c.keep.withheld)
		c.cfg.Waker.Wake(HubLane, Key{}, 0)
	}
	c.keep.reason, c.keep.back = reasonKept, false
}

// showsFuture reports whether informers show a state of a work that is later than
// all that the hub has, since it went back. They do so until they have listed the hub
// anew, which may take long: a watch that goes on from a resource version which the
// hub is yet to reach ends with no error, and tells nothing until then.
//
// t1: the hub has work w, which was created after the backup.
// t2: the hub is restored. Its position says that it went back; nothing is deleted.
// t3: informers show w, and the broker has it: nothing seems to be missing.
// t4: informers list anew, or another leader's do: w is missing.
//
// Therefore the doubt of t2 does not end at t3: at t4 w would be deleted.
func (c *Core) showsFuture() bool {
	k := &c.keep
	if k.ahead {
		return true
	}
	for _, w := range c.works {
		if n, err := resourceversion.CompareResourceVersion(seenVersion(w), k.newest); err == nil && n > 0 {
			return true
		}
	}
	return false
}

// seenVersion is the resource version that the informer shows of a work.
func seenVersion(w *work) string {
	if w.seen == nil || w.gone {
		return "0"
	}
	return w.seen.ResourceVersion
}

func samePosition(a, b *codec.HubPosition) bool {
	return a == b || a != nil && b != nil && *a == *b
}
