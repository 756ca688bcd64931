package store

import (
	"cmp"
	"errors"
	"slices"
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

// BookmarkList is what an engine keeps in memory of its bookmarks. The zero
// value is empty. It is not safe for concurrent use.
type BookmarkList struct {
	sorted []bookmark // by name
}

type bookmark struct {
	name  string
	value []byte // never changed in place
}

func byName(b bookmark, name string) int { return cmp.Compare(b.name, name) }

// Set as in [Store.SetBookmarks].
func (l *BookmarkList) Set(set map[string][]byte) {
	var added []bookmark
	for name, value := range set {
		i, ok := slices.BinarySearchFunc(l.sorted, name, byName)
		kept := value
		if kept != nil {
			kept = append([]byte{}, value...)
		}
		switch {
		case ok:
			l.sorted[i].value = kept
		case kept != nil:
			added = append(added, bookmark{name, kept})
		}
	}
	l.sorted = slices.DeleteFunc(l.sorted, func(b bookmark) bool { return b.value == nil })
	if len(added) > 0 {
		l.sorted = append(l.sorted, added...)
		slices.SortFunc(l.sorted, func(a, b bookmark) int { return cmp.Compare(a.name, b.name) })
	}
}

// Get returns the value of one bookmark, which must not be changed.
func (l *BookmarkList) Get(name string) (value []byte, ok bool) {
	i, ok := slices.BinarySearchFunc(l.sorted, name, byName)
	if !ok {
		return nil, false
	}
	return l.sorted[i].value, true
}

// Under as in [Store.Bookmarks].
func (l *BookmarkList) Under(prefix string) map[string][]byte {
	out := make(map[string][]byte)
	i, _ := slices.BinarySearchFunc(l.sorted, prefix, byName)
	for ; i < len(l.sorted) && strings.HasPrefix(l.sorted[i].name, prefix); i++ {
		out[l.sorted[i].name] = slices.Clone(l.sorted[i].value)
	}
	return out
}

// Clone returns a copy that is set on its own.
func (l *BookmarkList) Clone() BookmarkList {
	return BookmarkList{sorted: slices.Clone(l.sorted)}
}
