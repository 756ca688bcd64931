package store

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-io/hawser/pkg/codec"
)

// MaxBookmark is the maximum size of a bookmark value, in bytes.
const MaxBookmark = 4096

// Bookmark is a small value that the store keeps under a name beside the records. Other brokers get its
// changes through the change feed.
type Bookmark struct {
	Value    []byte // not modified; may be empty
	Revision uint64 // of its last change
}

// BookmarkWrite replaces, creates or removes one bookmark.
type BookmarkWrite struct {
	Name string
	// Old is the previous bookmark, nil if there was none. New is the next one, nil if it is removed.
	Old, New *Bookmark
}

// bindings is the prefix of the names of bindings.
const bindings = "cluster/"

// BindingName returns the name of the bookmark that holds the binding of a cluster name: the cluster uid that an
// agent sent, "" if no agent sent one.
func BindingName(dt codec.DataType, cluster string) string { return ScopedName(bindings, dt, cluster) }

// ParseBinding is the inverse of [BindingName]. ok is false for the name of another bookmark.
func ParseBinding(name string) (dt codec.DataType, cluster string, ok bool) {
	return ParseScopedName(bindings, name)
}

// ScopedName returns the name of a bookmark about the agents of a cluster. The prefix ends with a slash.
func ScopedName(prefix string, dt codec.DataType, cluster string) string {
	return prefix + dt.Group + "/" + dt.Version + "/" + dt.Resource + "/" + cluster
}

// ParseScopedName is the inverse of [ScopedName]. ok is false for a name with another prefix.
func ParseScopedName(prefix, name string) (dt codec.DataType, cluster string, ok bool) {
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return dt, "", false
	}
	p := strings.SplitN(rest, "/", 4) // only the name of a cluster may contain a slash
	if len(p) < 4 {
		return dt, "", false
	}
	return codec.DataType{Group: p[0], Version: p[1], Resource: p[2]}, p[3], true
}

// CheckBookmark returns the reason why a bookmark or a binding cannot be stored, "" if it can.
func CheckBookmark(name string, value []byte) string {
	if dt, cluster, ok := ParseBinding(name); ok {
		if p := scopeProblem(dt, cluster); p != "" {
			return p
		}
		return bindingProblem(dt, cluster)
	}
	return bookmarkProblem(name, value)
}

// bookmarkProblem returns the reason why an op cannot set a bookmark, otherwise "".
func bookmarkProblem(name string, value []byte) string {
	switch p := requiredProblem("name of the bookmark", name); {
	case p != "":
		return p
	case strings.HasPrefix(name, bindings):
		return "the bookmark " + strconv.Quote(name) + " has a name that belongs to bindings"
	case len(value) > MaxBookmark:
		return "the bookmark " + strconv.Quote(name) + " is longer than " + strconv.Itoa(MaxBookmark) + " bytes"
	default:
		return ""
	}
}

// bindingProblem returns the reason why a cluster name cannot be bound, otherwise "".
func bindingProblem(dt codec.DataType, cluster string) string {
	if strings.Contains(dt.Group+dt.Version+dt.Resource, "/") {
		return "the data type contains a slash"
	}
	return keyPartProblem("data type and cluster", BindingName(dt, cluster))
}

// WriteBookmarks commits bookmarks, all in one commit; a nil value removes one. Errors are those of the store, and
// that a bookmark cannot be stored. The others are then stored.
func WriteBookmarks(ctx context.Context, s Committer, set map[string][]byte) error {
	ops := make([]Op, 0, len(set))
	for _, name := range slices.Sorted(maps.Keys(set)) {
		ops = append(ops, Op{Kind: SetBookmark, Name: name, Value: set[name]})
	}
	outcomes, err := s.Commit(ctx, ops)
	for _, o := range outcomes {
		if o.Result == Invalid {
			return errors.New("store: " + o.Detail)
		}
	}
	return err
}

// setBookmark decides about a bookmark.
func (p *plan) setBookmark() {
	revision := uint64(0)
	if p.Guard != nil {
		revision = p.Guard.Revision
	}
	if p.op.Conditional && p.op.IfRevision != revision {
		p.answer(ConditionFailed, nil, revision)
		return
	}
	p.writeBookmark(p.op.Name, p.op.Value)
}

// bindCluster decides about an agent that subscribes.
func (p *plan) bindCluster() {
	uid := []byte(p.op.UID)
	switch b := p.Bookmark; {
	case b != nil && len(b.Value) > 0 && len(uid) > 0 && !bytes.Equal(b.Value, uid):
		p.answer(OwnedByOther, nil, b.Revision)
	case b != nil && len(uid) == 0:
		p.answer(Unchanged, nil, b.Revision)
	default:
		p.writeBookmark(BindingName(p.op.Key.DataType, p.op.Key.Cluster), uid)
	}
}

// writeBookmark writes a value under a name; nil removes the bookmark.
func (p *plan) writeBookmark(name string, value []byte) {
	old := p.Bookmark
	switch {
	case old == nil && value == nil:
		p.answer(Ignored, nil, 0)
		return
	case old != nil && value != nil && bytes.Equal(old.Value, value):
		p.answer(Unchanged, nil, old.Revision)
		return
	}
	w := &BookmarkWrite{Name: name, Old: old}
	c := Change{Revision: p.next(), Key: Key{ResourceID: name}, Part: BookmarkPart, Gone: value == nil}
	if value != nil {
		w.New = &Bookmark{Value: bytes.Clone(value), Revision: c.Revision}
		c.State, c.Value = Live, w.New.Value
	}
	p.d.Bookmark = w
	p.publish(c)
	p.wrote(Accepted, nil)
}
