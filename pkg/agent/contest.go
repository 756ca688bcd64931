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
	// contestRepairs is the number of repairs that makes an object contested when the repair budget of its work
	// is used up.
	contestRepairs = 3
	// enoughRepairs ends a contest: with at most this many missing tokens every change is repaired at once.
	enoughRepairs = 10
	// contestEnd is the time without a repair after which an object is no longer contested. It is a multiple of the
	// time between two repairs.
	contestEnd = 10 * time.Minute
)

// contests has the objects of a work that were repaired for the same spec. Guarded by works.mu.
//
// Scenario:
//
//	t1: the agent repairs an object.
//	t2: another writer changes it; t1 and t2 repeat.
//	t3: the repair budget is used up.
//
// Result: from now on the object is as the other writer wants it for most of each minute. The condition
// Contested reports this.
type contests map[kubeclient.Ref]contest

type contest struct {
	conditions.Contest
	repairs int
	last    time.Time
	// reported: the condition Contested shows it.
	reported bool
}

// repaired counts a repair.
func (c contests) repaired(ref kubeclient.Ref, is conditions.Contest, now time.Time) {
	k := c[ref]
	k.Contest, k.last = is, now
	k.repairs++
	c[ref] = k
}

// endure marks objects with several repairs as contested, because the budget is used up. It returns the newly
// contested objects.
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

// expire forgets objects without a repair for contestEnd, and returns when to look again. enough: enough
// repairs are left, so each change is repaired at once.
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

// renew resets the contests for a new spec. One more repair makes an object contested again.
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

// noteRepair records the repair of a step, and the managers or works that caused it.
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

// having returns the AppliedManifestWorks that list an object, except that of the key.
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

// reportContests logs the objects that are contested from now on.
func reportContests(ctx context.Context, r *reconciliation, work string) {
	r.mu.Lock()
	news := r.contests.endure()
	r.mu.Unlock()
	for _, ref := range news {
		r.log.WarnContext(ctx, "the object is changed after each repair: it is repaired less often from now on", "work", work, "object", ref.String(), "every", repairRate.every)
	}
}

// conditionOf returns the contest of an object that is changed after each repair; nil if it is not contested.
func (c contests) conditionOf(ref kubeclient.Ref) *conditions.Contest {
	if k := c[ref]; k.reported {
		return &k.Contest
	}
	return nil
}
