package registration

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// takeN removes up to n objects.
func takeN(c *changes, n int) (names []string, listed bool) {
	listed = c.take(func(k key, gone types.UID) bool {
		if len(names) == n {
			return false
		}
		names = append(names, k.name+string(gone))
		return true
	})
	return names, listed
}

// All objects are published once, then the mark that they are complete, even while objects change. An object
// that changes meanwhile is published once.
func TestChanges_ListThenEachOnce(t *testing.T) {
	var c changes
	c.add(key{name: "before"}, "")
	if c.any() {
		t.Fatal("there is a change to publish without a broker")
	}
	c.restart([]key{{name: "a"}, {name: "b"}, {name: "c"}})
	if got, listed := takeN(&c, 2); listed || !slices.Equal(got, []string{"a", "b"}) {
		t.Fatalf("first: %v, listed %v", got, listed)
	}
	for range 3 {
		c.add(key{name: "a"}, "")
		c.add(key{name: "c"}, "-gone")
	}
	if got, listed := takeN(&c, 1); !listed || !slices.Equal(got, []string{"c-gone"}) {
		t.Fatalf("second: %v, listed %v", got, listed)
	}
	c.add(key{name: "a"}, "") // the object exists again
	if got, listed := takeN(&c, 5); listed || !slices.Equal(got, []string{"a"}) || c.any() {
		t.Errorf("changes: %v, listed %v", got, listed)
	}
	if len(c.waiting) != 0 {
		t.Errorf("%d are kept", len(c.waiting))
	}
}

// A hub without objects also gets the mark that the list is complete.
func TestChanges_ListsNothing(t *testing.T) {
	var c changes
	c.restart(nil)
	if !c.any() {
		t.Fatal("the end of the list is not reported")
	}
	if got, listed := takeN(&c, 1); !listed || len(got) > 0 || c.any() {
		t.Errorf("%v, listed %v", got, listed)
	}
}

// Requests of a cluster run one after the other. A flood of one cluster does not delay the others, and requests
// above the limit are refused.
func TestQueue_IsFairAndBounded(t *testing.T) {
	var q queue
	for i := range 200 {
		q.push(waitingOf(fmt.Sprint("flood-", i), "flooding", false))
	}
	q.push(waitingOf("calm", "calm", false))
	l, first, _ := q.pop()
	_, second, _ := q.pop()
	_, third, ok := q.pop()
	if !ok || first.GetId() != "flood-0" || second.GetId() != "flood-64" || !second.refused || third.GetId() != "calm" {
		t.Fatalf("popped %s, %s (refused %v), %s", first.GetId(), second.GetId(), second.refused, third.GetId())
	}
	if _, w, ok := q.pop(); ok {
		t.Fatalf("%s, while others of its cluster are carried out", w.GetId())
	}
	q.done(l, 0)
	if _, w, ok := q.pop(); !ok || w.GetId() != "flood-1" {
		t.Fatalf("next is %s", w.GetId())
	}

	q = queue{}
	forgotten := 0
	for i := range 10_000 {
		if !q.push(waitingOf(fmt.Sprint(i), "flooding", false)) {
			forgotten++
		}
	}
	if n := q.queue.Len(); n > 64+1024 || forgotten != 10_000-n {
		t.Errorf("%d wait, %d were forgotten", n, forgotten)
	}
	// A client that names many clusters shares a few queues for all of them.
	q = queue{}
	for i := range 10_000 {
		q.push(waitingOf(fmt.Sprint(i), fmt.Sprint("cluster", i), true))
	}
	busy := 0
	for _, w, ok := q.pop(); ok; _, w, ok = q.pop() {
		if !w.refused {
			busy++
		}
	}
	if busy > queuesEach {
		t.Errorf("%d workers are busy with one account", busy)
	}
}

// waitingOf is a request that waits.
func waitingOf(id, cluster string, bootstrap bool) queuedRequest {
	request := &hawserv1.AgentRequest{Cluster: cluster, Bootstrap: bootstrap}
	return queuedRequest{RegistrationRequest: &hawserv1.RegistrationRequest{Id: id, Request: &hawserv1.RegistrationRequest_AgentRequest{AgentRequest: request}}}
}
