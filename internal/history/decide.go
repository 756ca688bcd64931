package history

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// IsBehind reports whether the position now of a server is before an earlier one. It returns false if the two
// cannot be compared.
func IsBehind(now, before string) bool {
	n, err := resourceversion.CompareResourceVersion(now, before)
	return err == nil && n < 0
}

// Write is the state of an object after a write. The zero value means no write.
type Write struct {
	UID             types.UID
	ResourceVersion string
}

// Evidence is what an object shows about an own write.
type Evidence int

const (
	// Nothing means that the object may come after the write.
	Nothing Evidence = iota
	// Missing means that the object is gone, or is another one. It may have been deleted.
	Missing
	// Older means that the object is as before the write, which is possible only in another history.
	Older
)

// Compare returns what the present state of an object shows about a write. The zero value of live is an object
// that does not exist.
func (w Write) Compare(live Write) Evidence {
	switch {
	case w == Write{}:
		return Nothing
	case live.UID != w.UID:
		return Missing
	case IsBehind(live.ResourceVersion, w.ResourceVersion):
		return Older
	}
	return Nothing
}
