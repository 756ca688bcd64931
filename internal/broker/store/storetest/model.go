package storetest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Model is the reference implementation for engines: a list of records without indexes, which each query
// searches completely. It has no files and is not safe for concurrent use.
type Model struct {
	head      store.Head
	records   []Entry
	published map[uint64]store.Change   // all entries that the feed ever had
	bookmarks map[string]store.Bookmark // with the bindings
}

// Entry is one record of a model, with its queued event.
type Entry struct {
	store.Record
	Queued []byte // event of Meta.Queued
}

// Step is the effect of one op on a model.
type Step struct {
	store.Decision
	Before, After uint64 // head
}

// NewModel returns an empty model.
func NewModel() *Model {
	return &Model{published: make(map[uint64]store.Change), bookmarks: make(map[string]store.Bookmark)}
}

// Head returns the last revision.
func (l *Model) Head() uint64 { return l.head.Revision }

// Reopen begins an incarnation, as opening a store does.
func (l *Model) Reopen() { l.head.FirstRevision = l.head.Revision + 1 }

// Apply decides op and executes the decision. It returns an error if the decision cannot be executed, which is
// a bug.
func (l *Model) Apply(op store.Op) (Step, error) {
	v, err := store.Look(l, l.head, &op)
	if err != nil {
		return Step{}, err
	}
	s := Step{Decision: store.Admit(l, &op, store.Decide(v, &op)), Before: l.Head(), After: l.Head()}
	if s.Outcome.Result == 0 {
		return s, fmt.Errorf("%+v has no result", op)
	}
	for i, c := range s.Changes {
		if c.Revision != l.Head()+1 {
			return s, fmt.Errorf("change %d has revision %d after %d", i, c.Revision, l.Head())
		}
		l.head.Revision = c.Revision
		l.published[c.Revision] = c
	}
	s.After = l.Head()
	var waited []byte
	if i := l.find(op.Key); i >= 0 {
		waited = l.records[i].Queued
	}
	seen := make(map[store.Key]bool)
	for _, w := range s.Writes {
		if seen[w.Key] {
			return s, fmt.Errorf("%v is written twice", w.Key)
		}
		seen[w.Key] = true
		if err := l.write(w, op.Event, waited); err != nil {
			return s, err
		}
	}
	if w := s.Bookmark; w != nil && w.New != nil {
		l.bookmarks[w.Name] = *w.New
	} else if w != nil {
		delete(l.bookmarks, w.Name)
	}
	return s, l.check(s)
}

func (l *Model) write(w store.Write, event, waited []byte) error {
	i := l.find(w.Key)
	var e Entry
	switch {
	case (i >= 0) != (w.Old != nil):
		return fmt.Errorf("%v: the decision is about a record that is not there, or misses one", w.Key)
	case i >= 0:
		e = l.records[i]
		l.records = slices.Delete(l.records, i, i+1)
	}
	if w.New == nil {
		return nil
	}
	if w.New.Key != w.Key {
		return fmt.Errorf("%v: written under %v", w.New.Key, w.Key)
	}
	e.Meta = *w.New
	for p, slot := range map[*store.Payload]*[]byte{&w.Spec: &e.Spec, &w.Status: &e.Status, &w.Queued: &e.Queued} {
		switch *p {
		case store.Clear:
			*slot = nil
		case store.FromOp:
			*slot = event
		case store.FromQueued:
			*slot = waited
		case store.Keep:
		}
	}
	l.records = append(l.records, e)
	return nil
}

func (l *Model) find(k store.Key) int {
	return slices.IndexFunc(l.records, func(e Entry) bool { return e.Key == k })
}

// Meta implements [store.Reader].
func (l *Model) Meta(k store.Key) (*store.Meta, error) {
	i := l.find(k)
	if i < 0 {
		return nil, nil
	}
	m := l.records[i].Meta
	return &m, nil
}

// IDByName implements [store.Reader].
func (l *Model) IDByName(dt codec.DataType, cluster, name string) (string, bool, error) {
	for _, e := range l.records {
		if e.DataType == dt && e.Cluster == cluster && slices.Contains(store.ReservedNames(&e.Meta), name) {
			return e.ResourceID, true, nil
		}
	}
	return "", false, nil
}

// BlockingTombstone implements [store.Reader].
func (l *Model) BlockingTombstone(k store.Key) (string, bool) {
	for _, e := range l.records {
		if e.DataType == k.DataType && e.Cluster == k.Cluster && store.QueuedID(&e.Meta) == k.ResourceID {
			return e.ResourceID, true
		}
	}
	return "", false
}

// IsSubscribed implements [store.Reader].
func (l *Model) IsSubscribed(dt codec.DataType, cluster string) bool {
	_, ok := l.Subscribed(dt, cluster)
	return ok
}

// Subscribed is Subscribed of [store.Replica].
func (l *Model) Subscribed(dt codec.DataType, cluster string) (string, bool) {
	b, ok := l.bookmarks[store.BindingName(dt, cluster)]
	return string(b.Value), ok
}

// Bookmark implements [store.Reader].
func (l *Model) Bookmark(name string) *store.Bookmark {
	if b, ok := l.bookmarks[name]; ok {
		return &b
	}
	return nil
}

// MarkSubscribed binds a cluster uid to a name, without a revision: the binding was there from the beginning.
func (l *Model) MarkSubscribed(dt codec.DataType, cluster, uid string) {
	l.bookmarks[store.BindingName(dt, cluster)] = store.Bookmark{Value: []byte(uid)}
}

// UnbindCluster removes the binding of a name, without a revision.
func (l *Model) UnbindCluster(dt codec.DataType, cluster string) {
	delete(l.bookmarks, store.BindingName(dt, cluster))
}

// Bookmarks is Bookmarks of [store.Replica].
func (l *Model) Bookmarks(prefix string) map[string][]byte {
	out := make(map[string][]byte)
	for name, b := range l.bookmarks {
		if _, _, binds := store.ParseBinding(name); !binds && strings.HasPrefix(name, prefix) {
			out[name] = b.Value
		}
	}
	return out
}

// Committer commits to a model, so that a test can write the same to it and to a store.
type Committer struct{ *Model }

// Commit implements [store.Committer].
func (c Committer) Commit(_ context.Context, ops []store.Op) (outcomes []store.Outcome, err error) {
	for _, op := range ops {
		s, err := c.Apply(op)
		if err != nil {
			return nil, err
		}
		outcomes = append(outcomes, s.Outcome)
	}
	return outcomes, nil
}

// Err implements [store.Committer].
func (Committer) Err() error { return nil }

// Get returns the record with key k.
func (l *Model) Get(k store.Key) (Entry, bool) {
	if i := l.find(k); i >= 0 {
		return l.records[i], true
	}
	return Entry{}, false
}

// Scan returns the records in scope, in key order.
func (l *Model) Scan(s store.Scope) []Entry {
	var out []Entry
	for _, e := range l.records {
		if e.DataType == s.DataType && (s.Cluster == "" || e.Cluster == s.Cluster) && (s.Owner == "" || e.Owner == s.Owner) {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.ResourceID, b.ResourceID))
	})
	return out
}

// Changes returns the feed entries above after, without removals.
func (l *Model) Changes(after uint64) []store.Change {
	var out []store.Change
	for _, e := range l.records {
		spec, status := store.Entries(&e.Meta)
		for _, revision := range []uint64{spec, status} {
			if revision > after {
				out = append(out, l.published[revision])
			}
		}
	}
	for _, b := range l.bookmarks {
		if b.Revision > after {
			out = append(out, l.published[b.Revision])
		}
	}
	slices.SortFunc(out, func(a, b store.Change) int { return cmp.Compare(a.Revision, b.Revision) })
	return out
}

// ClusterHead is ClusterHead of [store.Store], for the present records only.
func (l *Model) ClusterHead(dt codec.DataType, cluster string) store.ClusterHead {
	var h store.ClusterHead
	for _, e := range l.Scan(store.Scope{DataType: dt, Cluster: cluster}) {
		spec, _ := store.Entries(&e.Meta)
		h.SpecRevision = max(h.SpecRevision, spec)
		switch e.State {
		case store.Live:
			h.Digest.Count++
			if e.Failing {
				h.Failing++
			}
			if e.AwaitsStatus() {
				h.Unanswered++
			}
			h.Digest.Sum = h.Digest.Sum.Add(codec.RecordHash(e.ResourceID, e.Tag))
		case store.Tombstone:
			h.Tombstones++
		case store.ConfirmedTombstone:
		}
		if number(e.Sequence) > number(h.Sequence) { // agents made all ids
			h.Sequence = e.Sequence
		}
	}
	return h
}

func number(sequence string) int64 {
	n, err := strconv.ParseInt(sequence, 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// Since is Since of [store.Store].
func (l *Model) Since(s store.Scope, part store.Part, after uint64) []store.Meta {
	revision := func(m *store.Meta) uint64 {
		spec, status := store.Entries(m)
		if part == store.SpecPart {
			return spec
		}
		return status
	}
	var out []store.Meta
	for _, e := range l.Scan(s) {
		if revision(&e.Meta) > after {
			out = append(out, e.Meta)
		}
	}
	slices.SortFunc(out, func(a, b store.Meta) int { return cmp.Compare(revision(&a), revision(&b)) })
	return out
}

// Tombstones is Tombstones of [store.Store].
func (l *Model) Tombstones(dt codec.DataType, cluster string) []store.Meta {
	all := l.Since(store.Scope{DataType: dt, Cluster: cluster}, store.SpecPart, 0)
	return slices.DeleteFunc(all, func(m store.Meta) bool { return m.State != store.Tombstone })
}

// ConfirmedTombstones is ConfirmedTombstones of [store.Store].
func (l *Model) ConfirmedTombstones(dt codec.DataType, owner string, upTo uint64, limit int) []store.Key {
	var out []store.Key
	for _, m := range l.Since(store.Scope{DataType: dt, Owner: owner}, store.StatusPart, 0) {
		if m.CollectableWhenAcked() && m.StatusRevision <= upTo && len(out) < limit {
			out = append(out, m.Key)
		}
	}
	return out
}

// Digests is Digests of [store.Store].
func (l *Model) Digests(dt codec.DataType, owner string) []codec.ClusterDigest {
	var out []codec.ClusterDigest
	for _, e := range l.Scan(store.Scope{DataType: dt, Owner: owner}) { // by cluster
		if e.State == store.ConfirmedTombstone {
			continue
		}
		if n := len(out); n == 0 || out[n-1].Cluster != e.Cluster {
			out = append(out, codec.ClusterDigest{Cluster: e.Cluster})
		}
		d := &out[len(out)-1].Digest
		if e.State == store.Live {
			d.Count++
			d.Sum = d.Sum.Add(codec.RecordHash(e.ResourceID, e.Tag))
		}
		if w := e.Meta.Queued; w != nil && !w.Deleting {
			d.Count++
			d.Sum = d.Sum.Add(codec.RecordHash(w.ResourceID, w.Tag))
		}
	}
	return out
}
