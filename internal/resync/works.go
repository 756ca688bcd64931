package resync

import (
	"cmp"
	"slices"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Work is a work of a source on one cluster.
type Work struct {
	ID, Name string
	// Version is the source's own counter of the spec.
	Version int64
	// Tag is the tag that a publish of the spec would have. Untagged: it is unknown, so the work differs from every
	// record.
	Tag      codec.Tag
	Untagged bool
	// Deleting: the source deletes the work. The deletion must be published, whatever the broker has.
	Deleting bool
	// Unpublishable: the work cannot be published in its present form. Its record stays, and so do other records
	// with its name.
	Unpublishable bool
}

// Works is the plan that makes the records of one source on one cluster equal to its works. Every publishable
// work is in one of the first three lists. Every live record without a work is in Missing, except those in
// Replacing and QueuedBehindDeletion.
type Works struct {
	// InSync are the ids of works for which the broker has exactly this spec.
	InSync []string
	// Publish are the ids of works to publish as they are.
	Publish []string
	// Supersede are works with a later record: a higher version, or a deletion unknown to the source. Either the
	// source went back in time, or it was read too early: read it again.
	Supersede []OlderWork
	// Replacing are works that take the name of a live record with another id. The broker drops that record when
	// the work is published, and only then. If it is not published, compare again.
	Replacing []string
	// Missing are live records of works that the source does not have, sorted by id. Absence is not a deletion:
	// query the source for each of them, and see [MayDelete].
	Missing []codec.InventoryRecord
	// QueuedBehindDeletion is the number of such records without a revision. They are queued behind a deletion, and
	// cannot be named in a condition before it is confirmed. They are not in Missing.
	QueuedBehindDeletion int
	// Live is the number of live records.
	Live int
}

// OlderWork is a work that looks older than its record.
type OlderWork struct {
	ID string
	// Version and Revision are those of the record. Tombstone: it is a deletion.
	Version   int64
	Revision  uint64
	Tombstone bool
}

// CompareWorks returns the plan. The ids of works are unique. Of two records with one id, the one without a
// revision counts: it is queued behind a deletion, so it is the future one. Otherwise the higher revision
// counts.
func CompareWorks(works []Work, records []codec.InventoryRecord) Works {
	byID := make(map[string]codec.InventoryRecord, len(records))
	for _, r := range records {
		old, twice := byID[r.ResourceID]
		if !twice || r.Revision == 0 || old.Revision != 0 && old.Revision < r.Revision {
			byID[r.ResourceID] = r
		}
	}
	var p Works
	held := make(map[string]bool, len(works))
	taken := make(map[string]string, len(works)) // id by name
	for i := range works {
		w := &works[i]
		held[w.ID] = true
		if w.Unpublishable {
			continue
		}
		if !w.Deleting {
			taken[w.Name] = w.ID
		}
		r, has := byID[w.ID]
		p.decide(w, r, has)
	}
	for id, r := range byID {
		if r.Tombstone {
			continue
		}
		p.Live++
		switch {
		case held[id]:
		case taken[r.Name] != "":
			p.Replacing = append(p.Replacing, taken[r.Name])
		case r.Revision == 0:
			p.QueuedBehindDeletion++
		default:
			p.Missing = append(p.Missing, r)
		}
	}
	slices.Sort(p.Replacing)
	slices.SortFunc(p.Missing, func(a, b codec.InventoryRecord) int { return cmp.Compare(a.ResourceID, b.ResourceID) })
	return p
}

// decide adds one work to a list. r is its record; has: it has one.
func (p *Works) decide(w *Work, r codec.InventoryRecord, has bool) {
	switch {
	case w.Deleting || !has:
		p.Publish = append(p.Publish, w.ID)
	case r.Tombstone || r.Version > w.Version:
		p.Supersede = append(p.Supersede, OlderWork{ID: w.ID, Version: r.Version, Revision: r.Revision, Tombstone: r.Tombstone})
	case !w.Untagged && w.Tag == r.Tag:
		p.InSync = append(p.InSync, w.ID)
	default:
		p.Publish = append(p.Publish, w.ID)
	}
}

// Limits of deletions of works that the source does not have on a cluster. The higher one applies: a number, or
// a share of the live records.
const (
	maxMissing      = 10
	maxMissingShare = 20 // one of 20 live records
)

// MayDelete reports whether so few of the live records of a cluster are missing that they may be deleted
// without approval of an operator.
func MayDelete(missing, live int) bool { return missing <= max(maxMissing, live/maxMissingShare) }
