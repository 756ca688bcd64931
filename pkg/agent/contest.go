package agent

import (
	"context"
	"slices"
	"time"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

const (
	// contestRepairs is how often an object was repaired that is contested once its work is
	// repaired less often.
	contestRepairs = 3
	// enoughRepairs end a contest: with so few missing no change waits to be repaired.
	enoughRepairs = 10
	// contestEnd is after what time without a repair an object is contested no more. It is a
	// multiple of the time between two repairs.
	contestEnd = 10 * time.Minute
)

// contests are the objects of a work that were written again for the same spec, guarded by works.mu.
//
//	t1 the agent repairs an object, t2 something else changes it, and so on, t3 the repairs of this
//	moment are used up: from now on the object is as the other one wants it for most of each minute
type contests map[kubeclient.Ref]contest

type contest struct {
	conditions.Contest
	repairs int
	last    time.Time
	// reported: the condition Contested says so.
	reported bool
}

// repaired counts a repair.
func (c contests) repaired(ref kubeclient.Ref, is conditions.Contest, now time.Time) {
	k := c[ref]
	k.Contest, k.last = is, now
	k.repairs++
	c[ref] = k
}

// endure notes that repairs are used up: what was repaired several times is contested. It returns
// the objects for which that is news.
func (c contests) endure() (news []kubeclient.Ref) {
	for ref, k := range c {
		if k.repairs >= contestRepairs && !k.reported {
			news = append(news, ref)
			k.reported = true
			c[ref] = k
		}
	}
	return news
}

// expire forgets objects that needed no repair for long, and returns when to look again. With enough
// repairs left each change is repaired at once, however often it comes.
func (c contests) expire(enough bool, now time.Time) (next time.Duration) {
	for ref, k := range c {
		k.reported = k.reported && !enough
		c[ref] = k
		left := k.last.Add(contestEnd).Sub(now)
		if left <= 0 {
			delete(c, ref)
		} else if k.reported {
			next = sooner(next, left)
		}
	}
	return next
}

// renew has another spec try: what was contested is so again after one more repair.
func (c contests) renew() {
	for ref, k := range c {
		k.reported, k.repairs = false, min(k.repairs, contestRepairs-1)
		c[ref] = k
	}
}

// count returns how many objects are contested.
func (c contests) count(now time.Time) (n int) {
	for _, k := range c {
		if k.reported && now.Sub(k.last) < contestEnd {
			n++
		}
	}
	return n
}

// noteRepair notes what a step repaired, and which managers or works made that necessary.
func noteRepair(r *reconciliation, s *apply.Step) {
	if r.recreate {
		return
	}
	c := s.Contest(r.record.Owner())
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.Manager == "" && len(c.Works) == 0 {
		c.Works = r.orphans.having(s.Ref, r.key)
	}
	for i, name := range c.Works {
		if work, ours := r.workName(name); ours {
			c.Works[i] = "ManifestWork " + work
		} else {
			c.Works[i] = "AppliedManifestWork " + name + " of another hub"
		}
	}
	r.contests.repaired(s.Ref, c, r.now)
}

// having returns the AppliedManifestWorks that have an object, but for that of the key.
func (n *sharedObjects) having(ref kubeclient.Ref, key string) (names []string) {
	for _, records := range []map[string]*appliedwork.Record{n.own, n.foreign} {
		for name, rec := range records {
			if name != key && slices.ContainsFunc(rec.Entries(), func(e appliedwork.Entry) bool { return appliedwork.RefOf(e) == ref }) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// reportContests tells that objects are contested from now on.
func reportContests(ctx context.Context, r *reconciliation, work string) {
	r.mu.Lock()
	news := r.contests.endure()
	r.mu.Unlock()
	for _, ref := range news {
		r.log.WarnContext(ctx, "the object is changed after each repair: it is repaired less often from now on", "work", work, "object", ref.String(), "every", repairRate.every)
	}
}

// conditionOf is what is said of an object that is changed after each repair, nil if it is not.
func (c contests) conditionOf(ref kubeclient.Ref) *conditions.Contest {
	if k := c[ref]; k.reported {
		return &k.Contest
	}
	return nil
}
