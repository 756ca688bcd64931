package claims

import (
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/resync"
)

// A store that was restored may have gone back in time: an agent then holds a newer
// version than the record. It may be that the record is the truth (its source went back
// too), or that the store forgot something. Only the source knows.
//
// A deletion may have been confirmed since the backup, and undone by a new life of the
// work, which its agent holds. So a deletion waits for its source too. One of ours
// compares. A stock source does not, but it publishes what it has again: the deletion,
// or the new life, which then waits behind it. That is its word that the deletion is
// true.

// Decision says what an agent that listed a work is sent of its record.
type Decision uint8

// The decisions.
const (
	// Send: the record is no older than what the agent holds, or versions do not order
	// the two.
	Send Decision = iota + 1
	// Wait: the agent holds a newer version, and nobody has said which one is true.
	Wait
	// Force: the agent holds a newer version, and the record is true all the same.
	Force
)

// Case is a record beside what an agent listed of it.
type Case struct {
	// Listed is the version that the agent listed.
	Listed int64
	// Version of the record; Supersedes: it replaced a newer one on its source's word.
	Version    int64
	Supersedes bool
	// Vouched: the owner has compared what it owns on the cluster with this store.
	Vouched bool
	// InForce: the record is a deletion that came since the store was opened, or was
	// published again since.
	InForce bool
}

// Decide is the one rule about records of which an agent may hold a newer version.
func Decide(c Case) Decision {
	switch {
	case !resync.Newer(c.Listed, c.Version, c.Supersedes):
		return Send
	case c.Vouched, c.InForce:
		return Force
	}
	return Wait
}

// About returns the case of a record of which an agent listed a version.
func (c *Claims) About(m *store.Meta, listed int64) Case {
	return Case{
		Listed: listed, Version: m.Version, Supersedes: m.SpecSupersedes,
		Vouched: c.Sources.Vouches(placeOf(m.Key), m.Owner),
		InForce: m.State != store.Live && c.Deletions.inForce(m.Key, m.SpecRevision),
	}
}
