package store

import (
	"fmt"
	"strconv"
	"strings"
)

// Fence identifies one subscription of a source among its subscriptions at all brokers. A subscription that
// publishes, compares, or releases a cluster, takes over: the ops of earlier subscriptions get the result Fenced from then
// on. That is decided inside the commit, so it holds at each broker, also for an op that is queued already.
//
// Scenario:
//
//	t1: a source publishes at broker A; its connection breaks and delays the event.
//	t2: the source subscribes at broker B, and compares.
//	t3: the event arrives at A; the comparison would not repair its effect.
//
// Result: the event is rejected at A.
//
// Subscriptions are ordered by their start. No clock and no write is needed for that: a subscription starts at the head
// of the store. Of two that start at the same head, the one that takes over first counts as the later one. The other
// one ends, and its client subscribes again, at a later head.
type Fence struct {
	// Name is the name of the bookmark that has the subscription that took over last.
	Name string
	// Start is the head of the store at the start of the subscription.
	Start uint64
	// ID is the id of the subscription. No two subscriptions have the same id.
	ID string
}

// fences is the prefix of the names of fences.
const fences = "fence/"

// FenceOf returns the fence of a subscription of a source.
func FenceOf(source Scope, start uint64, id string) Fence {
	return Fence{Name: fences + source.DataType.String() + "/" + source.Owner, Start: start, ID: id}
}

// IsFence reports whether a bookmark has the subscription of a source that took over last.
func IsFence(name string) bool { return strings.HasPrefix(name, fences) }

// IsBehind reports whether another subscription has taken over that is not earlier. last is the value of the bookmark
// with the name of the fence. An error says that it is unreadable.
func (f Fence) IsBehind(last []byte) (bool, error) {
	start, id, _ := strings.Cut(string(last), "/")
	n, err := strconv.ParseUint(start, 10, 64)
	if err != nil {
		return false, fmt.Errorf("store: the bookmark %q is unreadable: %w", f.Name, err)
	}
	return f.Start <= n && f.ID != id, nil
}

// Leads reports whether the subscription has taken over last. last is the value of the bookmark with the name of the
// fence.
func (f Fence) Leads(last []byte) bool { return string(last) == f.value() }

// Takeover returns the op with which the subscription takes over.
func (f Fence) Takeover() Op { return Op{Kind: Supersede, Fence: f} }

// value returns the value of the bookmark if the subscription has taken over last.
func (f Fence) value() string { return strconv.FormatUint(f.Start, 10) + "/" + f.ID }

// isFenced reports whether the op comes too late.
func isFenced(r Reader, f Fence) (bool, error) {
	if f.Name == "" {
		return false, nil
	}
	b := r.Bookmark(f.Name)
	if b == nil {
		return false, nil
	}
	return f.IsBehind(b.Value)
}

// supersede decides about a subscription that takes over.
func (p *plan) supersede() {
	p.writeBookmark(p.op.Fence.Name, []byte(p.op.Fence.value()))
}
