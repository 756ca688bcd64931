package appliedwork

import (
	"cmp"
	"slices"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/workpolicy"
)

// Entry is one entry of the list. An empty UID is an intent: the object may exist.
type Entry = workv1.AppliedManifestResourceMeta

func entryOf(m apply.Manifest) Entry {
	return Entry{ResourceIdentifier: m.ID(), Version: m.Meta.Version}
}

// Sort orders entries as the API documents. Of several entries for one object, in any version, it keeps the
// last.
func Sort(entries []Entry) []Entry {
	last := make(map[workv1.ResourceIdentifier]int, len(entries))
	for i, e := range entries {
		last[e.ResourceIdentifier] = i
	}
	var out []Entry
	for i, e := range entries {
		if last[e.ResourceIdentifier] == i {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b Entry) int {
		return cmp.Or(
			cmp.Compare(a.Group, b.Group), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Resource, b.Resource),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name),
		)
	})
	return out
}

// Unreported returns a function that reports whether the object of a manifest is not in the list, in any
// version. Such an object probably does not exist.
func Unreported(recorded []Entry) func(apply.Manifest) bool {
	known := byIdentity(recorded)
	return func(m apply.Manifest) bool {
		_, has := known[m.ID()]
		return !has
	}
}

// Intend returns the list to record before the steps are executed: all present entries, and all objects that
// exist or are about to be created. An object that is created again loses its uid until the new one is known.
func Intend(recorded []Entry, steps []apply.Step) []Entry {
	next := slices.Clone(recorded)
	known := byIdentity(recorded)
	for _, s := range steps {
		e := entryOf(s.Manifest)
		switch old, has := known[e.ResourceIdentifier]; s.Action {
		case apply.Create, apply.Recreate:
			next = append(next, e)
		case apply.Update:
			if e.UID = string(s.Live.GetUID()); !has || old.UID != e.UID {
				next = append(next, e)
			}
		case apply.Unchanged, apply.Reject: // nothing is created
		}
	}
	return Sort(next)
}

// Merge returns the list to record after objects were applied:
//   - objects that exist, with their uid;
//   - objects that may exist because that is unknown, and objects that the cluster refused to create: a retry
//     would record the same intent. Objects that the work may not create or read are omitted, because they
//     would block the deletion of the work;
//   - objects that had to be removed and still exist.
//
// stale is the result of [StaleEntries], remaining the part of it that was not removed.
func Merge(recorded []Entry, results []apply.Result, stale, remaining []Entry) []Entry {
	drop := byIdentity(stale)
	next := slices.DeleteFunc(slices.Clone(recorded), func(e Entry) bool { _, ok := drop[e.ResourceIdentifier]; return ok })
	for _, r := range results {
		if !r.Resolved {
			continue
		}
		e := entryOf(r.Manifest)
		switch {
		case workpolicy.Refused(r.Err) != nil: // another client created and owns the object
			next = slices.DeleteFunc(next, func(o Entry) bool { return o.ResourceIdentifier == e.ResourceIdentifier && o.UID == "" })
		case r.Presence == conditions.Present:
			e.UID = string(r.UID())
			next = append(next, e)
		case r.Unmade && r.Presence == conditions.Unreadable:
			next = slices.DeleteFunc(next, func(o Entry) bool { return o.ResourceIdentifier == e.ResourceIdentifier && o.UID == "" })
		case r.Presence == conditions.Absent && (r.Action == apply.Reject || r.Action == apply.Unchanged):
			next = slices.DeleteFunc(next, func(o Entry) bool { return o.ResourceIdentifier == e.ResourceIdentifier && o.UID != "" })
		}
	}
	return Sort(append(next, remaining...))
}

// StaleEntries returns the entries without a manifest in the work, in any version. An entry is not stale if a
// manifest with an unknown resource may match it.
func StaleEntries(recorded []Entry, manifests []apply.Manifest) []Entry {
	wanted := map[workv1.ResourceIdentifier]bool{}
	var unclear []apply.Manifest
	for _, m := range manifests {
		if m.Resolved {
			wanted[m.ID()] = true
		} else {
			unclear = append(unclear, m)
		}
	}
	var stale []Entry
	for _, e := range recorded {
		if !wanted[e.ResourceIdentifier] && !slices.ContainsFunc(unclear, func(m apply.Manifest) bool { return mayBe(m, e) }) {
			stale = append(stale, e)
		}
	}
	return stale
}

// Forfeit returns the entries of objects that agents need. The work has a manifest for each, and must release
// them at once.
func Forfeit(recorded []Entry, results []apply.Result) (forfeit []Entry) {
	known := byIdentity(recorded)
	for _, r := range results {
		if refused := workpolicy.Refused(r.Err); refused != nil && refused.IsAgentObject() {
			if e, has := known[r.ID()]; has {
				forfeit = append(forfeit, e)
				delete(known, r.ID())
			}
		}
	}
	return forfeit
}

// mayBe reports whether a manifest with an unknown resource may match this entry.
func mayBe(m apply.Manifest, e Entry) bool {
	switch {
	case m.Object == nil:
		return true
	case m.Meta.Name != e.Name:
		return false
	case m.Meta.Resource != "" && m.Meta.Resource != e.Resource:
		return false
	}
	return (m.Meta.Group == e.Group || calledAlike(m.Meta.Kind, e.Resource)) && (m.Meta.Namespace == e.Namespace || m.Meta.Namespace == "" || e.Namespace == "")
}

func byIdentity(entries []Entry) map[workv1.ResourceIdentifier]Entry {
	m := make(map[workv1.ResourceIdentifier]Entry, len(entries))
	for _, e := range entries {
		m[e.ResourceIdentifier] = e
	}
	return m
}
