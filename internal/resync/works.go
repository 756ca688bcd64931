package resync

import (
	"cmp"
	"slices"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Work is what a source has of one of its works on one cluster.
type Work struct {
	ID, Name string
	// Version is the source's own counter of the spec.
	Version int64
	// Tag is that of the spec as publishing it would make it. Untagged: it is
	// not known, so the work counts as different from every record.
	Tag      codec.Tag
	Untagged bool
	// Deleting: the source deletes the work; what the broker must hear is the
	// deletion, whatever it has.
	Deleting bool
	// Unpublishable: the work cannot be published in its present form. What the broker
	// has of it stays, and so does what else goes by its name.
	Unpublishable bool
}

// Works says what makes the records of one source on one cluster those of its
// works. Every work is in one of the first three lists or stuck; every live
// record that is none of them is in Missing, unless a work that is published
// takes its name, for a broker replaces it then.
type Works struct {
	// InSync are the ids of works of which the broker has exactly this spec.
	InSync []string
	// Publish are the ids of works to publish as they are.
	Publish []string
	// Supersede are works of which the broker has something later: a higher
	// version, or a deletion that the source knows nothing of. Either the source
	// went back in time, or what was read of it is old: ask it again.
	Supersede []Behind
	// Replacing are works that take the name of a live record with another id:
	// the broker drops that one when the work is published, and only then. If it
	// is not, compare again.
	Replacing []string
	// Missing are live records of works that the source lacks, sorted by id.
	// That something is not there is no deletion: ask the source for each, and
	// see [MayDelete].
	Missing []codec.InventoryRecord
	// QueuedBehindDeletion counts those of them that have no revision: they wait behind a
	// deletion, and nothing can be said about them on a condition before it is
	// confirmed. They are not in Missing.
	QueuedBehindDeletion int
	// Live counts the live records.
	Live int
}

// Behind is a work that looks older than its record.
type Behind struct {
	ID string
	// Version and Revision are the record's; Tombstone: it is a deletion.
	Version   int64
	Revision  uint64
	Tombstone bool
}

// CompareWorks plans. The ids of works are unique. Of two records with one id
// that counts which waits behind a deletion (it has no revision), because it is
// what will be, else the one with the higher revision.
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

// decide puts one work into a list. r is its record, if it has one.
func (p *Works) decide(w *Work, r codec.InventoryRecord, has bool) {
	switch {
	case w.Deleting || !has:
		p.Publish = append(p.Publish, w.ID)
	case r.Tombstone || r.Version > w.Version:
		p.Supersede = append(p.Supersede, Behind{ID: w.ID, Version: r.Version, Revision: r.Revision, Tombstone: r.Tombstone})
	case !w.Untagged && w.Tag == r.Tag:
		p.InSync = append(p.InSync, w.ID)
	default:
		p.Publish = append(p.Publish, w.ID)
	}
}

// Bounds of what may be deleted on a cluster because its source lacks it: that
// many, or that share of the live records where it is more.
const (
	maxMissing      = 10
	maxMissingShare = 20 // one in
)

// MayDelete reports whether so few of the live records of a cluster are missing
// that they may be deleted without asking a person.
func MayDelete(missing, live int) bool { return missing <= max(maxMissing, live/maxMissingShare) }
