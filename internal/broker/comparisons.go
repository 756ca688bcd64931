package broker

import (
	"errors"
	"slices"
	"sync"

	"github.com/hawser-io/hawser/pkg/codec"
)

// maxCompared is how many clusters a source may name as compared. The names
// need not be known: a store that was lost has to learn them from the sources.
const maxCompared = 1 << 16

// comparisons knows which sources have finished comparing what they own with
// this store. It is forgotten when the store is opened again, which is when a
// store may have gone back in time: a record that is older than what an agent
// holds is the truth only after its source has looked at that record. Its
// methods may be called concurrently and do no I/O.
type comparisons struct {
	mu      sync.Mutex
	sources map[ownership]*comparison
}

// ownership is everything of one data type that a source owns.
type ownership struct {
	dataType codec.DataType
	owner    string
}

// comparison is how far one source is.
type comparison struct {
	// all: every cluster is compared but for those in except; else those in
	// clusters are.
	all      bool
	clusters map[string]struct{}
	// except maps to the subscription on which the source said that it withholds
	// something there, "" where the cluster was released.
	except map[string]string
	// said counts how often the source began to say something of it, and how often
	// it was revoked on some cluster.
	said uint64
}

var (
	errTooManyCompared = errors.New("more clusters are named as compared than a source may have")
	// errOvertaken: something else was said since, or it was revoked on a cluster.
	errOvertaken = errors.New("what the source compared was overtaken")
)

func newComparisons() *comparisons { return &comparisons{sources: map[ownership]*comparison{}} }

// outcome is what a source said of its comparison.
type outcome struct {
	ownership
	subscription string
	// begun is what begin returned, or now, before anything was done about it.
	begun uint64
	// compared is as it wants it, open is not.
	compared, open []string
	// all: so is every cluster that is not open on this subscription.
	all bool
}

// changes says where the set of compared sources is another one now.
type changes struct {
	everywhere bool
	clusters   []string
}

// of returns the comparison of a source. The caller holds mu.
func (c *comparisons) of(o ownership) *comparison {
	s := c.sources[o]
	if s == nil {
		s = &comparison{clusters: map[string]struct{}{}, except: map[string]string{}}
		c.sources[o] = s
	}
	return s
}

// now returns a number that is another one whenever something else was said or
// revoked.
func (c *comparisons) now(o ownership) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of(o).said
}

// begin is called when a source says something, with what now returned: it counts
// only if nothing else is said or revoked until it is applied.
func (c *comparisons) begin(o ownership, before uint64) (begun uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.of(o)
	if s.said != before {
		return 0, false
	}
	s.said++
	return s.said, true
}

// apply takes an outcome over and calls then, or fails with errTooManyCompared or
// errOvertaken.
func (c *comparisons) apply(o outcome, then func()) (changes, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.of(o.ownership)
	switch {
	case s.said != o.begun:
		return changes{}, errOvertaken
	case s.size(o) > maxCompared:
		return changes{}, errTooManyCompared
	}
	then()
	return s.take(o), nil
}

// take is what apply does when there is nothing against it.
func (s *comparison) take(o outcome) (changed changes) {
	note := func(cluster string, was bool) {
		if was != s.has(cluster) {
			changed.clusters = append(changed.clusters, cluster)
		}
	}
	for _, cluster := range o.open {
		was := s.has(cluster)
		delete(s.clusters, cluster)
		s.except[cluster] = o.subscription
		note(cluster, was)
	}
	for _, cluster := range o.compared {
		was := s.has(cluster)
		delete(s.except, cluster)
		if !s.all {
			s.clusters[cluster] = struct{}{}
		}
		note(cluster, was)
	}
	if !o.all {
		return changed
	}
	for cluster, subscription := range s.except {
		if subscription != o.subscription {
			delete(s.except, cluster)
			changed.clusters = append(changed.clusters, cluster)
		}
	}
	changed.everywhere = !s.all
	s.all, s.clusters = true, map[string]struct{}{}
	return changed
}

// size is how many clusters there would be to remember with an outcome.
func (s *comparison) size(o outcome) int {
	n := len(s.clusters) + len(s.except)
	for _, names := range [][]string{o.compared, o.open} {
		for _, cluster := range names {
			_, known := s.clusters[cluster]
			_, excepted := s.except[cluster]
			if !known && !excepted {
				n++
			}
		}
	}
	return n
}

// revoke notes that what a source said of a cluster counts no longer. It
// reports whether it did.
func (c *comparisons) revoke(o ownership, cluster string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.of(o)
	s.said++
	was := s.has(cluster)
	delete(s.clusters, cluster)
	delete(s.except, cluster)
	if s.all {
		s.except[cluster] = ""
	}
	return was
}

func (s *comparison) has(cluster string) bool {
	if s.all {
		_, excepted := s.except[cluster]
		return !excepted
	}
	_, ok := s.clusters[cluster]
	return ok
}

// has reports whether a source has compared what it owns on a cluster.
func (c *comparisons) has(p place, owner string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.sources[ownership{p.dataType, owner}]
	return s != nil && s.has(p.cluster)
}

// at returns, sorted, the sources that have compared what they own on a
// cluster.
func (c *comparisons) at(p place) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var owners []string
	for o, s := range c.sources {
		if o.dataType == p.dataType && s.has(p.cluster) {
			owners = append(owners, o.owner)
		}
	}
	slices.Sort(owners)
	return owners
}
