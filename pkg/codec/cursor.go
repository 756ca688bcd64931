package codec

import (
	"fmt"
	"strconv"
	"strings"
)

// Cursor is a position in the history of one broker store.
type Cursor struct {
	// StoreID is the identity of the store. Incarnation is the opening of the store that assigned the revision.
	// Neither contains "/".
	StoreID     string `json:"storeID"`
	Incarnation string `json:"incarnation"`
	// Revision is the broker's counter of changes.
	Revision uint64 `json:"revision"`
}

// ParseCursor parses "<store-id>/<incarnation>/<revision>", the form of the
// hawser-cursor header. The error names the header.
func ParseCursor(s string) (Cursor, error) {
	parts := strings.Split(s, "/")
	if len(parts) == 3 && parts[0] != "" && parts[1] != "" {
		revision, err := strconv.ParseUint(parts[2], 10, 64)
		if err == nil {
			return Cursor{StoreID: parts[0], Incarnation: parts[1], Revision: revision}, nil
		}
	}
	return Cursor{}, fmt.Errorf("%s is %q: must be <store-id>/<incarnation>/<revision>", HeaderCursor, shorten(s))
}

// String returns "<store-id>/<incarnation>/<revision>", or "" for the zero cursor.
func (c Cursor) String() string {
	if c == (Cursor{}) {
		return ""
	}
	return c.StoreID + "/" + c.Incarnation + "/" + FormatRevision(c.Revision)
}
