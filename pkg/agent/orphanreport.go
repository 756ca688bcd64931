package agent

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	hubs "github.com/hawser-io/hawser/pkg/agent/hubidentity"
	"github.com/hawser-io/hawser/pkg/codec"
)

// What no work explains and nobody may remove by himself is told to the broker,
// where operators see it: AppliedManifestWorks without a work that do not say
// whose they are, as other agents leave them, and those of other hubs that have
// objects of this one's works. Of the former an operator can have one removed or
// adopted.

// find returns what there is.
func (s *orphans) find() codec.OrphanReport {
	var found []codec.OrphanRecord
	for _, name := range slices.Sorted(maps.Keys(s.found)) {
		if one := s.found[name]; one.report.UID != "" && one.state == unowned {
			found = append(found, one.report)
		}
	}
	for _, name := range s.shared() {
		r := reportOf(s.foreign[name])
		r.Shared = true
		if s.found[name].report.UID == "" {
			found = append(found, r)
		}
	}
	u := codec.OrphanReport{Records: found}
	if n := len(found) - codec.MaxOrphanReport; n > 0 {
		u.Records, u.More = found[:codec.MaxOrphanReport], uint64(n)
	}
	return u
}

// reportOf is what the broker is told of an AppliedManifestWork.
func reportOf(rec *appliedwork.Record) codec.OrphanRecord {
	m := rec.Metadata()
	return codec.OrphanRecord{
		UID: string(m.GetUID()), Name: m.GetName(), Created: m.GetCreationTimestamp().Time, Objects: uint64(len(rec.Entries())),
	}
}

// revise has the broker told if it was told something else last.
func (s *orphans) revise() {
	if s.subscription.requeueReport(func(last codec.OrphanReport) bool { return reflect.DeepEqual(s.find(), last) }) {
		s.config.Sync(0)
	}
}

// ordered returns what an operator wants of one that was just read, once.
func (s *orphans) ordered(key, uid string) (order codec.ResolveOrphan, ok bool) {
	order, ok = s.resolves[key]
	delete(s.resolves, key)
	return order, ok && order.UID == uid
}

// report notes what the broker is told of one. What became of the last order is told
// until there is another.
func (s *orphans) report(key string, reported codec.OrphanRecord, recreate bool) {
	one := s.found[key]
	if !recreate && one.report.UID == reported.UID {
		reported.Outcome = one.report.Outcome
	}
	one.report = reported
	s.found[key] = one
}

// resolve takes an operator's word about an AppliedManifestWork.
func (c *Core) resolve(ctx context.Context, e codec.Event) {
	r, err := codec.ParseResolveOrphan(e)
	if err != nil {
		c.config.Metrics.event(eventUndecodable)
		c.config.Log.WarnContext(ctx, "order of an operator that cannot be read", "error", err)
		return
	}
	c.mu.Lock()
	s, known := c.orphans.found[r.Name]
	known = known && string(s.uid) == r.UID && s.report.UID == r.UID
	if known {
		c.orphans.resolves[r.Name] = r
	}
	c.mu.Unlock()
	if !known {
		c.drop(ctx, eventIgnored, e)
		return
	}
	c.config.Metrics.event(eventResolve)
	c.config.Wake(r.Name, true)
}

// resolveOrphan sees to an AppliedManifestWork that was just read and is nobody's:
// it is told of, and removed or adopted if an operator wants this one to be.
func (r *reconciliation) resolveOrphan(ctx context.Context) (time.Duration, error) {
	reported := reportOf(r.record)
	r.mu.Lock()
	order, ordered := r.orphans.ordered(r.key, reported.UID)
	r.mu.Unlock()
	if ordered && order.Adopt {
		reported.Outcome = r.adoptOrphan(ctx)
	}
	r.mu.Lock()
	r.orphans.report(r.key, reported, ordered)
	r.mu.Unlock()
	if !ordered || order.Adopt {
		return 0, nil
	}
	r.log.WarnContext(ctx, "removing an AppliedManifestWork without an owner: an operator wants it", "objects", reported.Objects)
	gone, err := r.recorder.dissolve(ctx, nil)
	if err != nil || gone {
		return 0, err
	}
	return r.removalWait(), nil
}

// adoptOrphan has the work of the same name own an AppliedManifestWork that is
// nobody's, and says why not if there is none. One under the name that the work
// itself would use was its own already; under the name of another hub, or a former
// identity, it is evicted from then on as one of that work: what both have stays.
func (r *reconciliation) adoptOrphan(ctx context.Context) (outcome string) {
	_, name, _ := hubs.Split(r.key)
	r.mu.Lock()
	w := r.set.ByName(name).Live
	r.mu.Unlock()
	if w == nil {
		return "it cannot be adopted: there is no work " + name + " of this hub; create it, and it takes the objects over"
	}
	err := r.recorder.took(r.store.Claim(ctx, r.record, nil, appliedwork.Origin{Source: w.Source, WorkID: w.ResourceID, Version: w.SpecGeneration, Tag: w.SpecTag.String()}))
	if err != nil {
		r.log.WarnContext(ctx, "an AppliedManifestWork could not be adopted", "work", name, "error", err)
		return "it could not be adopted, try again: the agent's log says why"
	}
	r.log.InfoContext(ctx, "an AppliedManifestWork without an owner was adopted: an operator wants it", "work", name, "work_id", w.ResourceID)
	return ""
}
