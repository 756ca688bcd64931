package history

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// Behind reports whether a position that a server has now is before one that it had. Positions
// that cannot be compared say nothing.
func Behind(now, before string) bool {
	n, err := resourceversion.CompareResourceVersion(now, before)
	return err == nil && n < 0
}

// Write is an object as a write left it. The zero value is none.
type Write struct {
	UID             types.UID
	ResourceVersion string
}

// Evidence is what an object says about a write of one's own.
type Evidence int

const (
	// Nothing means that the object may come after the write.
	Nothing Evidence = iota
	// Missing means that the object is gone, or another one. It may have been deleted.
	Missing
	// Older means that it is as it was before the write, which happens in another history only.
	Older
)

// Compare returns what an object as it is now says about a write; the zero value of live is an
// object that does not exist.
func (w Write) Compare(live Write) Evidence {
	switch {
	case w == Write{}:
		return Nothing
	case live.UID != w.UID:
		return Missing
	case Behind(live.ResourceVersion, w.ResourceVersion):
		return Older
	}
	return Nothing
}
