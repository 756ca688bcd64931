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
	n       int
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
	x.n++
}

// Remove takes a subscription away from a scope; it is no error when it is not
// there. The order of the remaining ones may change.
func (x *Index[S]) Remove(sc Scope, s S) {
	l := x.byScope[sc]
	i := slices.Index(l, s)
	if i < 0 {
		return
	}
	x.n--
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

// Len returns the number of subscriptions over all scopes.
func (x *Index[S]) Len() int { return x.n }
