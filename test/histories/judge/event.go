// Package judge checks the recorded history of clients that used several brokers over one database. It is pure: a
// list of events in, a list of violations out.
//
// A work has one source, which publishes its versions one after the other, and then at most a deletion. So a work is
// a register, and porcupine checks that its publishes and reads are linearizable. The other rules are in rules.go.
//
// A failover to an asynchronous standby may lose acknowledged writes. The rules allow that for the writes that the
// standby did not have, and require a new incarnation of the store.
package judge

import "time"

// Kind is what an event reports.
type Kind string

// The kinds of events. From and To are begin and end of a call; other events have only To.
const (
	// Write: a source published a version of a work, or its deletion. Acked tells whether the broker acknowledged it.
	Write Kind = "write"
	// Report: an agent published a status. Number counts the reports of a work.
	Report Kind = "report"
	// Read: a client read the work in the store. Version 0: the store has no such work.
	Read Kind = "read"
	// Subscribe: a broker accepted a subscription with the cursor Incarnation and Revision. List tells whether the
	// broker asked for a list, because it does not continue from that cursor.
	Subscribe Kind = "subscribe"
	// Spec: an agent received a spec or a deletion. Status: a source received a status.
	Spec   Kind = "spec"
	Status Kind = "status"
	// Checkpoint: a client received a cursor.
	Checkpoint Kind = "checkpoint"
	// Failover: the database ended at From, and a standby replaced it at To. Revision is the head of that standby.
	// Lossy: the standby was asynchronous.
	Failover Kind = "failover"
	// Fault: any other fault, and its end. It is for the reader of the trace.
	Fault Kind = "fault"
)

// The kinds of events at the end of a run, when all faults have ended and nothing is written any more.
const (
	// Stored: the store has this work.
	Stored Kind = "stored"
	// Held: a subscriber has this work.
	Held Kind = "held"
	// Known: a source has this status of a work, the report Number about Version.
	Known Kind = "known"
	// Digest: a broker sent a client the digest of a cluster.
	Digest Kind = "digest"
	// Complete: these are all works of an agent of Cluster, or all statuses of a source.
	Complete Kind = "complete"
)

// Event is one line of a trace. Times count from the begin of the run.
type Event struct {
	Kind   Kind          `json:"kind"`
	From   time.Duration `json:"from,omitempty"`
	To     time.Duration `json:"to"`
	Client string        `json:"client,omitempty"`

	Cluster string `json:"cluster,omitempty"`
	Work    string `json:"work,omitempty"` // resource id, unique over all clusters
	Version int64  `json:"version,omitempty"`
	Deleted bool   `json:"deleted,omitempty"`
	Number  int    `json:"number,omitempty"`
	Acked   bool   `json:"acked,omitempty"`

	Incarnation string `json:"incarnation,omitempty"`
	Revision    uint64 `json:"revision,omitempty"`
	List        bool   `json:"list,omitempty"`
	Lossy       bool   `json:"lossy,omitempty"`
	Digest      string `json:"digest,omitempty"`
	Text        string `json:"text,omitempty"`
}

// Violation is a broken promise.
type Violation struct {
	Rule Rule
	What string
	// Events are those that contradict each other.
	Events []Event
}

// Rule is a promise that a history can break.
type Rule string

// The rules.
const (
	// Register: publishes and reads of a work are linearizable.
	Register Rule = "register"
	// CommitOrder: of two publishes, one after the other, the answer to the later one has the higher revision.
	CommitOrder Rule = "commit order"
	// Forward: a subscriber never receives an older spec or status of a work.
	Forward Rule = "forward"
	// Undone: a deleted work never lives again.
	Undone Rule = "undone"
	// Invented: nothing is received or stored that no client published.
	Invented Rule = "invented"
	// Cursors: a cursor of lost writes is not continued, and later writes belong to another incarnation.
	Cursors Rule = "cursors"
	// Acknowledged: the store ends with the last acknowledged write of each work.
	Acknowledged Rule = "acknowledged"
	// Converged: each subscriber ends equal to the store.
	Converged Rule = "converged"
	// Digests: all brokers send the same digest of a cluster.
	Digests Rule = "digests"
)

// Check returns the violations of a history, in the order of the rules.
func Check(history []Event) []Violation {
	h := index(history)
	var found []Violation
	for _, check := range []func(*indexed) []Violation{
		(*indexed).register, (*indexed).commitOrder, (*indexed).received, (*indexed).cursors, (*indexed).acknowledged, (*indexed).converged, (*indexed).digests,
	} {
		found = append(found, check(h)...)
	}
	return found
}
