package store

import (
	"errors"
	"strconv"
	"strings"
)

// MaxBookmark bounds the value of a bookmark, in bytes.
const MaxBookmark = 4096

// CheckBookmarks says what makes bookmarks impossible to store, nil when nothing
// does. Engines call it in SetBookmarks.
func CheckBookmarks(set map[string][]byte) error {
	for name, value := range set {
		switch p := requiredProblem("name of a bookmark", name); {
		case p != "":
			return errors.New("store: " + p)
		case len(value) > MaxBookmark:
			return errors.New("store: bookmark " + strconv.Quote(name) + " is longer than " + strconv.Itoa(MaxBookmark) + " bytes")
		}
	}
	return nil
}

// Bookmarks is what an engine keeps in memory of its bookmarks: there are few. It
// is not safe for concurrent use, but for Under.
type Bookmarks map[string][]byte // values are never changed in place

// Set as in [Store.SetBookmarks].
func (b Bookmarks) Set(set map[string][]byte) {
	for name, value := range set {
		if value == nil {
			delete(b, name)
		} else {
			b[name] = append([]byte{}, value...)
		}
	}
}

// Under as in [Store.Bookmarks].
func (b Bookmarks) Under(prefix string) map[string][]byte {
	out := make(map[string][]byte)
	for name, value := range b {
		if strings.HasPrefix(name, prefix) {
			out[name] = append([]byte{}, value...)
		}
	}
	return out
}
