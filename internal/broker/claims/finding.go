package claims

import (
	"cmp"
	"maps"
	"slices"

	"github.com/hawser-io/hawser/internal/broker/store"
)

// Finding is something that does not fit together and is left alone.
type Finding struct {
	Cause      Cause
	Place      store.Scope
	ResourceID string // "" of a quarantined cluster
	Name       string // of the work; Withheld only, may be empty
	Source     string // Withheld only
	Revision   uint64 // of the record's spec; Withheld only
	Detail     string // Withheld: the source's reason; Quarantined: the uid
	// Omitted is how many more unexplained works there are, which are not named; the
	// Finding names none then.
	Omitted int
}

// Cause says what does not fit together.
type Cause uint8

// The causes, in the order in which they are shown.
const (
	// Unexplained: an agent lists the work, and no record explains it.
	Unexplained Cause = iota + 1
	// Newer: an agent lists a newer version of the work than the record's.
	Newer
	// Withheld: the source of the record lacks the work, and does not dare to delete it.
	Withheld
	// Quarantined: an agent of another cluster comes under the name.
	Quarantined
)

// Findings calls f for what does not fit together on a cluster, or everywhere where it is "",
// by cluster, data type, cause, source and id. No lock is held while it does.
func (c *Claims) Findings(cluster string, f func(Finding) error) error {
	places := map[store.Scope]struct{}{}
	c.Lists.places(places)
	c.Sources.places(places)
	c.Names.places(places)
	sorted := slices.SortedFunc(maps.Keys(places), func(a, b store.Scope) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.DataType.String(), b.DataType.String()))
	})
	for _, place := range sorted {
		if cluster != "" && place.Cluster != cluster {
			continue
		}
		found := slices.Concat(c.Lists.findings(place), c.Sources.findings(place), c.Names.findings(place))
		slices.SortFunc(found, func(a, b Finding) int {
			return cmp.Or(cmp.Compare(a.Omitted, b.Omitted), cmp.Compare(a.Cause, b.Cause), cmp.Compare(a.Source, b.Source), cmp.Compare(a.ResourceID, b.ResourceID))
		})
		for _, one := range found {
			if err := f(one); err != nil {
				return err
			}
		}
	}
	return nil
}
