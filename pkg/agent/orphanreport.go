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

// The agent reports orphan AppliedManifestWorks that it may not remove itself to the broker, where operators
// see them. There are two kinds: unowned orphans, as other agents leave them, and AppliedManifestWorks of other
// hubs that share objects with works of this hub. An operator can have an unowned orphan removed or adopted.

// find returns the report of the current orphans.
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

// reportOf returns the report entry of an AppliedManifestWork.
func reportOf(rec *appliedwork.Record) codec.OrphanRecord {
	m := rec.Metadata()
	return codec.OrphanRecord{
		UID: string(m.GetUID()), Name: m.GetName(), Created: m.GetCreationTimestamp().Time, Objects: uint64(len(rec.Entries())),
	}
}

// revise queues a new report if the orphans have changed since the last report.
func (s *orphans) revise() {
	if s.subscription.requeueReport(func(last codec.OrphanReport) bool { return reflect.DeepEqual(s.find(), last) }) {
		s.config.Sync(0)
	}
}

// ordered returns and removes the operator's order for an orphan that was just read.
func (s *orphans) ordered(key, uid string) (order codec.ResolveOrphan, ok bool) {
	order, ok = s.resolves[key]
	delete(s.resolves, key)
	return order, ok && order.UID == uid
}

// report sets the report entry of an orphan. The outcome of the last order stays in it until there is another
// order.
func (s *orphans) report(key string, reported codec.OrphanRecord, recreate bool) {
	one := s.found[key]
	if !recreate && one.report.UID == reported.UID {
		reported.Outcome = one.report.Outcome
	}
	one.report = reported
	s.found[key] = one
}

// resolve processes an operator's order about an AppliedManifestWork.
func (c *Core) resolve(ctx context.Context, e codec.Event) {
	r, err := codec.ParseResolveOrphan(e)
	if err != nil {
		c.config.Metrics.event(eventUndecodable)
		c.config.Log.WarnContext(ctx, "unreadable decision of an operator", "error", err)
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

// resolveOrphan handles an unowned orphan that was just read: it reports it, and removes or adopts it if an
// operator ordered that.
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
	r.log.WarnContext(ctx, "removing an AppliedManifestWork without an owner: an operator ordered it", "objects", reported.Objects)
	gone, err := r.recorder.dissolve(ctx, nil)
	if err != nil || gone {
		return 0, err
	}
	return r.removalWait(), nil
}

// adoptOrphan makes the work of the same name the owner of an unowned orphan. It returns why not if there is no
// such work. An orphan under the key of the work itself already belongs to it. One under the name of another
// hub or of a former identity becomes a record of that work and is evicted. Objects in both records stay.
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
		return "it could not be adopted, try again: the agent's log has the reason"
	}
	r.log.InfoContext(ctx, "an AppliedManifestWork without an owner was adopted: an operator ordered it", "work", name, "work_id", w.ResourceID)
	return ""
}
