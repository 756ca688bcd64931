// Package route decides who is sent what: an [Index] of subscriptions by
// (cluster, data type) and (owner, data type), and per subscription a
// [Mailbox], the set of records that subscription still has to be sent.
//
// A mailbox holds keys, not events: a subscriber that is slow, stuck or away
// costs a few bytes per work and delays nobody, and when it reads again it gets
// the latest state of each record once. The package is pure; the broker gives
// every mailbox to exactly one stream and guards it.
package route

import (
	"slices"

	"github.com/hawser-io/hawser/internal/broker/store"
)

// Scope is what a subscription covers: the spec events of one cluster, or the
// status events of one owner's works. Exactly one of Cluster and Owner is set.
type Scope = store.Scope

// Index finds the subscriptions of a scope. S is the caller's handle of a
// subscription. The zero value is empty and ready; an Index is for one
// goroutine at a time.
type Index[S comparable] struct {
	byScope map[Scope][]S
}

// Add puts a subscription under a scope. Adding it twice has no effect.
func (x *Index[S]) Add(sc Scope, s S) {
	if slices.Contains(x.byScope[sc], s) {
		return
	}
	if x.byScope == nil {
		x.byScope = map[Scope][]S{}
	}
	x.byScope[sc] = append(x.byScope[sc], s)
}

// Remove takes a subscription away from a scope; it is no error when it is not
// there. The order of the remaining ones may change.
func (x *Index[S]) Remove(sc Scope, s S) {
	l := x.byScope[sc]
	i := slices.Index(l, s)
	if i < 0 {
		return
	}
	if len(l) == 1 {
		delete(x.byScope, sc)
		return
	}
	last := len(l) - 1
	l[i] = l[last]
	var zero S
	l[last] = zero
	x.byScope[sc] = l[:last]
}

// Get returns the subscriptions of a scope. The slice belongs to the Index and
// is valid until the next Add or Remove.
func (x *Index[S]) Get(sc Scope) []S { return x.byScope[sc] }
