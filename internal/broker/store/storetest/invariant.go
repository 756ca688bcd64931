package storetest

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/broker/store"
)

// check checks the invariants of the model after a step.
func (l *Model) check(s Step) error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	wrote := s.Outcome.Result == store.Accepted || s.Outcome.Result == store.Confirmed || s.Outcome.Result == store.Queued
	if wrote != (len(s.Writes) > 0 || s.Bookmark != nil) {
		fail("result %d with %d writes", s.Outcome.Result, len(s.Writes))
	}
	if len(s.Changes) > 0 && s.Outcome.Result != store.Queued && s.Outcome.Revision != s.After {
		fail("the outcome has revision %d, the last one is %d", s.Outcome.Revision, s.After)
	}
	for _, w := range s.Writes {
		if err := matchFeed(w, s.Changes); err != nil {
			errs = append(errs, err)
		}
	}
	names := make(map[string]store.Key)
	revisions := make(map[uint64]store.Key)
	for _, e := range l.records {
		if err := checkEntry(e); err != nil {
			errs = append(errs, fmt.Errorf("%v: %w", e.Key, err))
		}
		for _, n := range store.ReservedNames(&e.Meta) {
			at := fmt.Sprintf("%v/%s/%s", e.DataType, e.Cluster, n)
			if other, dup := names[at]; dup {
				fail("name %s is held by %v and %v", at, other, e.Key)
			}
			names[at] = e.Key
		}
		spec, status := store.Entries(&e.Meta)
		for _, r := range []uint64{spec, status} {
			if other, dup := revisions[r]; dup && r != 0 {
				fail("revision %d is of %v and %v", r, other, e.Key)
			}
			revisions[r] = e.Key
			if r > l.Head() {
				fail("revision %d of %v is above the head %d", r, e.Key, l.Head())
			}
		}
		if err := l.checkQueued(e); err != nil {
			errs = append(errs, fmt.Errorf("%v: %w", e.Key, err))
		}
	}
	return errors.Join(errs...)
}

// matchFeed checks that a write and its feed entries match.
func matchFeed(w store.Write, changes []store.Change) error {
	oldSpec, oldStatus := store.Entries(w.Old)
	newSpec, newStatus := store.Entries(w.New)
	expected := 0
	for _, h := range []struct {
		part     store.Part
		old, new uint64
	}{{store.SpecPart, oldSpec, newSpec}, {store.StatusPart, oldStatus, newStatus}} {
		if h.old == h.new || h.new == 0 && w.New != nil {
			continue
		}
		expected++
		found := false
		for _, c := range changes {
			found = found || c.Key == w.Key && c.Part == h.part && c.Gone == (w.New == nil) && (c.Gone || c.Revision == h.new)
		}
		if !found {
			return fmt.Errorf("the feed misses part %d of %v", h.part, w.Key)
		}
	}
	entries := 0
	for _, c := range changes {
		if c.Key == w.Key {
			entries++
		}
	}
	if entries != expected {
		return fmt.Errorf("%d entries of the feed for %d changes of %v", entries, expected, w.Key)
	}
	if expected == 0 {
		return silent(w)
	}
	return nil
}

// silent returns an error if a write without a change in the feed changes more than the queued spec.
func silent(w store.Write) error {
	if w.Old == nil || w.New == nil || w.Spec != store.Keep || w.Status != store.Keep {
		return fmt.Errorf("%v is written without a change in the feed", w.Key)
	}
	a, b := *w.Old, *w.New
	a.Queued, b.Queued = nil, nil
	a.Sizes.Queued, b.Sizes.Queued = 0, 0
	if d := cmp.Diff(a, b); d != "" {
		return fmt.Errorf("%v is changed without a change in the feed: %s", w.Key, d)
	}
	return nil
}

func checkEntry(e Entry) error {
	switch {
	case e.State < store.Live || e.State > store.ConfirmedTombstone:
		return fmt.Errorf("state %d", e.State)
	case e.Owner == "" || e.Name == "":
		return errors.New("no owner or no name")
	case e.SpecRevision == 0:
		return errors.New("no revision")
	case e.State == store.Live && len(e.Spec) == 0:
		return errors.New("live without a spec")
	case e.State == store.ConfirmedTombstone && (e.Spec != nil || e.StatusRevision == 0 || e.ConfirmedAt.IsZero()):
		return errors.New("confirmed tombstone with a spec, without a final status or without a time")
	case e.State == store.Live && !e.DeletedAt.IsZero():
		return errors.New("live with a deletion time")
	case e.State != store.ConfirmedTombstone && !e.ConfirmedAt.IsZero():
		return errors.New("a time of confirmation, but no confirmed tombstone")
	case e.StatusRevision == 0 && e.Status != nil:
		return errors.New("status without a revision")
	case e.State != store.ConfirmedTombstone && e.StatusRevision != 0 && e.Status == nil:
		return errors.New("revision without a status")
	case (e.Superseded != 0) != e.SpecSupersedes || e.SpecSupersedes && e.State != store.ConfirmedTombstone && e.Version > e.Superseded:
		return errors.New("superseded versions do not fit")
	default:
		return nil
	}
}

func (l *Model) checkQueued(e Entry) error {
	w := e.Meta.Queued
	if w == nil {
		if e.Queued != nil {
			return errors.New("an event is queued without a spec")
		}
		return nil
	}
	own := w.ResourceID == e.ResourceID
	switch {
	case e.State != store.Tombstone:
		return errors.New("a spec is queued behind a record that is not a tombstone")
	case w.Owner != e.Owner:
		return errors.New("the queued spec belongs to another owner")
	case own && w.Deleting:
		return errors.New("a deletion waits behind its own tombstone")
	case !w.Deleting && len(e.Queued) == 0:
		return errors.New("a create waits without its event")
	}
	other := e.Key
	other.ResourceID = w.ResourceID
	if r, ok := l.Get(other); ok && !own && r.State != store.ConfirmedTombstone {
		return fmt.Errorf("%s waits and is there", w.ResourceID)
	} else if ok && r.Owner != e.Owner {
		return fmt.Errorf("%s is queued, and its confirmed tombstone has another owner", w.ResourceID)
	}
	behind := 0
	for _, o := range l.records {
		if o.Meta.Queued != nil && o.DataType == e.DataType && o.Cluster == e.Cluster && o.Meta.Queued.ResourceID == w.ResourceID {
			behind++
		}
	}
	if behind != 1 {
		return fmt.Errorf("%s waits %d times", w.ResourceID, behind)
	}
	return nil
}

// same reports whether two payloads are equal; nil and empty differ.
func same(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }
