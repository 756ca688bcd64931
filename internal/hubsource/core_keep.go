package hubsource

import (
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/resync"
	"github.com/hawser-io/hawser/pkg/codec"
)

// keep is what the source knows of its hub's history, and what it leaves there
// for the next process.
//
// A hub that was restored from a backup lacks works that nobody deleted. So
// what only the broker has is deleted on it as long as nothing casts doubt on
// the hub, and left to a person from then on, until a comparison finds that
// nothing is missing any more. The doubt is kept on the hub before anything is
// done that hides its cause.
type keep struct {
	// position is where the hub was when it was last asked, on connection
	// locatedOn; due: it is to be asked again. An answer counts that was asked for
	// in the present round. asked bounds how often.
	position  *codec.HubPosition
	newest    string // resource version of all that the hub has shown since it went back
	ahead     bool   // that is later than position, and the hub is to be asked why
	locatedOn int
	round     int
	due       bool
	asked     time.Time
	retry     retry

	// missing counts works that were missing from a list and that no comparison
	// has looked for since.
	missing int

	// withheld are the clusters in doubt, everywhere included; reason is why
	// that is.
	withheld map[string]bool
	reason   string
	// calm is when the hub has told everything that it had to tell after it
	// showed that it went back in time.
	calm time.Time
	// back: this process saw it go back, and asks for all statuses since.
	back bool
	// settled is State.Settled.
	settled *codec.HubPosition

	// saved is on the hub. savedAt bounds how often it is written for a cursor
	// alone. blocked wait for a doubt to be saved.
	saved     State
	savedAt   time.Time
	saveRetry retry
	blocked   []types.UID
	// overwritten: what is on the hub is not what this process saved last. The hub
	// may have gone back, and the statuses that the cursor passed with it.
	overwritten bool
}

const (
	// locateEvery is how often a hub on which something happens is asked how
	// far it has come.
	locateEvery = time.Minute
	// saveEvery is how often the cursor is saved.
	saveEvery = 5 * time.Second
	// calmAfter is how long informers may take to say all that is new after the
	// hub was found to have gone back in time.
	calmAfter = 30 * time.Second
)

// reasonKept is the reason of a doubt that an earlier process had.
const reasonKept = "deletions were withheld before, and what is missing on the hub has not been settled since"

// restore takes what an earlier process saved.
func (c *Core) restore(s State) {
	c.keep = keep{withheld: map[string]bool{}, reason: reasonKept, settled: s.Settled, saved: s}
	for _, name := range s.Withheld {
		c.keep.withheld[name] = true
	}
	if cursor, err := codec.ParseCursor(s.Cursor); err == nil {
		c.stream.cursor = cursor
	}
	c.stream.open = &segment{}
}

// State returns what is to be saved, and whether that is something new. A shell
// that ends saves it.
func (c *Core) State() (s State, unsaved bool) {
	s = State{Cursor: c.stream.cursor.String(), Withheld: withheldOf(c.keep.withheld), Settled: c.keep.settled}
	if c.keep.overwritten {
		s.Cursor = "" // the next process asks for all statuses
	}
	return s, !s.equal(c.keep.saved)
}

// nextSave decides about keeping the state on the hub.
func (c *Core) nextSave() Effect {
	s, unsaved := c.State()
	if !unsaved {
		return nil
	}
	onlyCursor := State{Cursor: s.Cursor, Withheld: c.keep.saved.Withheld, Settled: c.keep.saved.Settled}.equal(s)
	if d := c.keep.savedAt.Add(saveEvery).Sub(c.cfg.Now()); d > 0 && onlyCursor {
		c.cfg.Waker.Wake(HubLane, Key{}, d)
		return nil
	}
	if !c.due(HubLane, Key{}, &c.keep.saveRetry) {
		return nil
	}
	return Save{State: s}
}

func (c *Core) doneSave(e Save, r Result) {
	k := &c.keep
	if k.savedAt = c.cfg.Now(); r.Err != nil {
		if apierrors.IsConflict(r.Err) && c.comparison.on {
			k.overwritten = true
			c.locateNow()
		}
		c.hubFailed(HubLane, Key{}, &k.saveRetry, r.Err)
		return
	}
	if e.State.doubtsAll() && !k.saved.doubtsAll() {
		// The hub has moved on with that, so that where it is when the doubt ends is
		// none of the positions that a broker may have been told before.
		c.locateNow()
	}
	k.saved, k.saveRetry = e.State, retry{}
	for _, uid := range k.blocked {
		c.cfg.Waker.Wake(SpecLane, Key{UID: uid}, 0)
	}
	k.blocked = nil
	c.cfg.Waker.Wake(HubLane, Key{}, 0)
}

// doubtKept reports whether the next process would know that this hub went back
// in time, also when the work no longer shows it.
func (c *Core) doubtKept(w *work) bool {
	if c.keep.saved.doubtsAll() {
		return true
	}
	c.keep.blocked = append(c.keep.blocked, w.uid)
	c.cfg.Waker.Wake(HubLane, Key{}, 0)
	return false
}

// wentBack takes it that the hub is in an earlier state than this process saw it
// in: nothing is deleted because it is missing, and the statuses of all works
// are asked for, because what was written is there no more.
func (c *Core) wentBack(reason string) {
	if c.cfg.NewID == nil {
		return
	}
	c.suspect(reason)
	c.loseCursor()
	if c.keep.back {
		return
	}
	c.keep.back = true
	for _, cl := range c.clusters {
		if cl.selected {
			for _, w := range cl.works {
				w.report.sequence = "" // what was taken before is wanted once more
			}
			c.askAgain(cl, c.connected && !c.stock)
			c.cfg.Waker.Wake(SpecLane, Key{Cluster: cl.name}, 0)
		}
	}
}

// suspect takes it that the hub is in an earlier state than it once was. What
// was saved on it has gone back together with it, the cursor too.
func (c *Core) suspect(reason string) {
	k := &c.keep
	k.calm = c.cfg.Now().Add(calmAfter)
	c.cfg.Waker.Wake(SpecLane, Key{}, calmAfter)
	if k.withheld[everywhere] && k.reason != reasonKept {
		return
	}
	k.reason, k.withheld = reason, map[string]bool{everywhere: true}
	c.cfg.Waker.Wake(HubLane, Key{}, 0)
}

// doubt returns why nothing may be deleted on a cluster because it is missing,
// "" when it may be.
func (c *Core) doubt(cl *cluster) string {
	k, n := &c.keep, &cl.comparing
	switch {
	case k.withheld[everywhere]:
		return k.reason
	case !resync.MayDelete(n.candidates, n.live):
		c.distrust(cl)
		return fmt.Sprintf("%d of %d works are missing on the hub at once", n.candidates, n.live)
	case k.withheld[cl.name]:
		return reasonKept
	}
	return ""
}

// distrust withholds deletions on one cluster, whatever is missing there later.
func (c *Core) distrust(cl *cluster) {
	c.keep.withheld[cl.name] = true
	c.cfg.Waker.Wake(HubLane, Key{}, 0)
}

// setMissing notes whether a work is missing that no comparison has looked for
// since. As long as there is one, the hub's position is not to be believed: a
// publish under way may keep the comparison waiting, for any time.
func (c *Core) setMissing(w *work, missing bool) {
	if w.missing == missing {
		return
	}
	if w.missing = missing; missing {
		c.keep.missing++
		return
	}
	if c.keep.missing--; c.keep.missing == 0 {
		c.tellPosition()
	}
}

// trust ends that when nothing is missing on the cluster any more.
func (c *Core) trust(cl *cluster) {
	if c.keep.withheld[cl.name] {
		delete(c.keep.withheld, cl.name)
		c.cfg.Waker.Wake(HubLane, Key{}, 0)
	}
}

// located reports whether the hub's position is known and compared with the
// last one.
func (c *Core) located() bool {
	return c.comparison.complete && c.keep.locatedOn == c.conn
}

// nextLocate decides about asking the hub how far it has come.
func (c *Core) nextLocate() Effect {
	k := &c.keep
	if !k.due || !c.comparison.on || !c.connected || !c.due(HubLane, Key{}, &k.retry) {
		return nil
	}
	return Locate{newest: k.newest, round: k.round, conn: c.conn}
}

func (c *Core) doneLocate(e Locate, r Result) {
	k := &c.keep
	switch {
	case e.conn != c.conn:
		return // asked again
	case r.Err != nil || r.Position == nil:
		c.hubFailed(HubLane, Key{}, &k.retry, r.Err)
		return
	}
	before, asked := k.position, k.asked
	k.position, k.asked, k.retry = r.Position, c.cfg.Now(), retry{}
	if k.due = e.round != k.round; !k.due { // else it has to be asked once more
		k.locatedOn, k.overwritten = c.conn, false
	}
	if reason := c.newerThanNow(before); reason != "" {
		c.wentBack(reason)
	} else if reason := c.newerThanNow(&codec.HubPosition{UID: r.Position.UID, ResourceVersion: e.newest}); reason != "" {
		c.wentBack(reason)
	}
	k.ahead = false
	if k.newest == e.newest {
		k.newest = r.Position.ResourceVersion
	} else if !k.due && c.newerThanNow(&codec.HubPosition{UID: r.Position.UID, ResourceVersion: k.newest}) != "" {
		// What came while the hub was asked may be later than its answer, or from
		// before it went back.
		k.ahead = true
		c.locateAt(asked.Add(locateEvery))
	}
	c.judgeHub()
	for name, cl := range c.clusters {
		if cl.comparing.stage == checksMissing {
			c.cfg.Waker.Wake(SpecLane, Key{Cluster: name}, 0)
		}
	}
	c.tellPosition()
	c.cfg.Waker.Wake(HubLane, Key{}, 0)
}

// judgeHub compares, once, where the hub is with what the broker knows of it. What
// this process has read of the hub's state may be from before it went back.
func (c *Core) judgeHub() {
	if c.keep.locatedOn == c.conn {
		if reason := c.newerThanNow(c.comparison.last); reason != "" {
			c.wentBack(reason)
		}
		c.comparison.last = nil
	}
}

// judgeStore takes what the broker knows of the hub, for whether its store is from
// before the last doubt about the hub ended: then it may have works again that the
// hub lost, and whose records it had let go of since.
func (c *Core) judgeStore(last *codec.HubPosition) {
	settled := c.keep.settled
	if settled == nil || last != nil && last.UID == settled.UID && !laterThan(settled, last) {
		return
	}
	c.suspect("the hub went back in time before, and the broker's store is from before all that it lacked then was settled")
}

// laterThan compares positions of one hub.
func laterThan(a, b *codec.HubPosition) bool {
	n, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && n > 0
}

// newerThanNow returns why the hub's present position cannot come after another
// one; "" if it can, or if that one is not known.
func (c *Core) newerThanNow(before *codec.HubPosition) string {
	now := c.keep.position
	switch {
	case before == nil:
		return ""
	case before.UID != now.UID:
		return fmt.Sprintf("the hub is another one than before: its uid is %s, not %s", now.UID, before.UID)
	}
	if laterThan(before, now) {
		return fmt.Sprintf("the hub went back in time: its resource version is %s, and was %s before", now.ResourceVersion, before.ResourceVersion)
	}
	return ""
}

// locateNow has the hub asked before anything is deleted because it is missing.
func (c *Core) locateNow() {
	c.keep.round++
	c.keep.due, c.keep.locatedOn, c.keep.retry = true, 0, retry{}
	c.cfg.Waker.Wake(HubLane, Key{}, 0)
}

// shown notes how far the hub has come at least.
func (c *Core) shown(o *workv1.ManifestWork) {
	k := &c.keep
	if n, err := resourceversion.CompareResourceVersion(o.ResourceVersion, k.newest); k.newest == "" || err == nil && n > 0 {
		k.newest = o.ResourceVersion
	}
}

// moved notes that something happened on the hub, so that the broker is told
// before long how far the hub has come.
func (c *Core) moved(o *workv1.ManifestWork) {
	k := &c.keep
	c.shown(o)
	if !c.comparison.on || !c.connected || k.due || k.locatedOn != c.conn {
		return
	}
	c.locateAt(k.asked.Add(locateEvery))
}

func (c *Core) locateAt(at time.Time) {
	c.keep.due, c.keep.retry = true, retry{notBefore: at}
	c.cfg.Waker.Wake(HubLane, Key{}, max(0, at.Sub(c.cfg.Now())))
}
