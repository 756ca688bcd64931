// Package subscribers keeps the running subscriptions of a service.
package subscribers

import (
	"maps"
	"slices"
)

// Member is a running subscription. Its id, scope and connection do not change.
type Member[S comparable] interface {
	comparable
	ID() string
	Scope() S
	Conn() uint64
}

// Set is a set of running subscriptions, by id and by scope. The caller has a lock for it.
type Set[S comparable, M Member[S]] struct {
	ByID    map[string]M
	ByScope map[S][]M
	closed  bool
	empty   chan struct{}
}

// New returns an empty set.
func New[S comparable, M Member[S]]() Set[S, M] {
	return Set[S, M]{ByID: map[string]M{}, ByScope: map[S][]M{}, empty: make(chan struct{})}
}

// Add adds a member.
func (r *Set[S, M]) Add(m M) {
	r.ByID[m.ID()] = m
	r.ByScope[m.Scope()] = append(r.ByScope[m.Scope()], m)
}

// Remove removes a member, which must have been added.
func (r *Set[S, M]) Remove(m M) {
	rest := slices.DeleteFunc(r.ByScope[m.Scope()], func(o M) bool { return o == m })
	if r.ByScope[m.Scope()] = rest; len(rest) == 0 {
		delete(r.ByScope, m.Scope())
	}
	delete(r.ByID, m.ID())
	r.checkEmpty()
}

// Close returns the members. The caller adds no more of them.
func (r *Set[S, M]) Close() []M {
	r.closed = true
	r.checkEmpty()
	return slices.Collect(maps.Values(r.ByID))
}

// Empty is closed after Close, when the last member is removed. It needs no lock.
func (r *Set[S, M]) Empty() <-chan struct{} { return r.empty }

func (r *Set[S, M]) checkEmpty() {
	if !r.closed || len(r.ByID) > 0 {
		return
	}
	select {
	case <-r.empty:
	default:
		close(r.empty)
	}
}

// Requesters returns the members of a scope that a request is about, of those that may make it. If the request
// has an id, that is only this member: what an earlier one sent may be outdated. Otherwise it returns those on
// the connection of the request or, if there are none, all of the scope.
func (r *Set[S, M]) Requesters(scope S, id string, conn uint64, may func(M) bool) []M {
	var same, all []M
	for _, m := range r.ByScope[scope] {
		if !may(m) || id != "" && id != m.ID() {
			continue
		}
		if all = append(all, m); m.Conn() == conn {
			same = append(same, m)
		}
	}
	if id == "" && len(same) > 0 {
		return same
	}
	return all
}

// Counts has the number of members by a key. Keys with the number 0 are absent.
type Counts[K comparable] map[K]int

// Add adds n, which may be negative, to the number of a key.
func (c Counts[K]) Add(k K, n int) {
	if c[k] += n; c[k] == 0 {
		delete(c, k)
	}
}
