package appliedwork

import (
	"cmp"
	"slices"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/workpolicy"
)

// Entry is one line of the list. An empty UID is an intent: the object may
// exist.
type Entry = workv1.AppliedManifestResourceMeta

func entryOf(m apply.Manifest) Entry {
	return Entry{ResourceIdentifier: m.ID(), Version: m.Meta.Version}
}

// Sort orders entries as the API documents it and, of several entries for one
// object, whatever the version, keeps the last given.
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

// Unreported returns which manifests are about objects that are not on a list, in
// any version: they are likely not to exist.
func Unreported(recorded []Entry) func(apply.Manifest) bool {
	known := byIdentity(recorded)
	return func(m apply.Manifest) bool {
		_, has := known[m.ID()]
		return !has
	}
}

// Intend returns the list to record before the steps are taken: everything on
// it, and everything that exists or is about to be made. An object that is made
// anew loses its uid until it is known again.
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
		case apply.Unchanged, apply.Refuse: // nothing comes into existence
		}
	}
	return Sort(next)
}

// Merge returns the list to record after objects were applied:
//   - what exists, with its uid;
//   - what may exist because nobody could tell, and what the cluster refused to
//     make: it is tried again, and each try would record the same intent. Not in
//     the list is what the work may not make or read: it would block the deletion
//     of the work;
//   - of what had to be removed, what still exists.
//
// stale is the outcome of [Stale], remaining what was left when it was removed.
func Merge(recorded []Entry, results []apply.Result, stale, remaining []Entry) []Entry {
	drop := byIdentity(stale)
	next := slices.DeleteFunc(slices.Clone(recorded), func(e Entry) bool { _, ok := drop[e.ResourceIdentifier]; return ok })
	for _, r := range results {
		if !r.Resolved {
			continue
		}
		e := entryOf(r.Manifest)
		switch {
		case workpolicy.Refused(r.Err) != nil: // made by somebody else, and theirs
			next = slices.DeleteFunc(next, func(o Entry) bool { return o.ResourceIdentifier == e.ResourceIdentifier && o.UID == "" })
		case r.Presence == conditions.Present:
			e.UID = string(r.UID())
			next = append(next, e)
		case r.Unmade && r.Presence == conditions.Unreadable:
			next = slices.DeleteFunc(next, func(o Entry) bool { return o.ResourceIdentifier == e.ResourceIdentifier && o.UID == "" })
		case r.Presence == conditions.Absent && (r.Action == apply.Refuse || r.Action == apply.Unchanged):
			next = slices.DeleteFunc(next, func(o Entry) bool { return o.ResourceIdentifier == e.ResourceIdentifier && o.UID != "" })
		}
	}
	return Sort(append(next, remaining...))
}

// Stale returns the entries for which no manifest of the work stands any more,
// in another version neither. An entry that a manifest without a known resource
// may stand for is not stale.
func Stale(recorded []Entry, manifests []apply.Manifest) []Entry {
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

// Forfeit returns the entries of objects that agents live by: the work, which has a manifest
// for each, must let go of them at once.
func Forfeit(recorded []Entry, results []apply.Result) (forfeit []Entry) {
	known := byIdentity(recorded)
	for _, r := range results {
		if refused := workpolicy.Refused(r.Err); refused != nil && refused.Own() {
			if e, has := known[r.ID()]; has {
				forfeit = append(forfeit, e)
				delete(known, r.ID())
			}
		}
	}
	return forfeit
}

// mayBe reports whether a manifest whose resource is not known may be about
// this entry, judging by what is known of it.
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
