// Package sessionfence says which event of another party counts where a broker stands between the
// two that keeps nothing, as a stock MQTT broker: it may bring an event twice, late, behind
// its successors, or not at all, and nobody on the way remembers anything.
//
// Each Hawser party has a [Tracker]. Its events say in which session of the party they were
// made, and which session of the receiver the party had heard of by then:
//
//	an event counts if it is of the latest session of its sender that was heard of, and
//	was made after its sender had heard of the receiver's present session
//
// The first voids what a process before, or a connection before, left on the way. The second
// voids what was said to a process before: the receiver began after it, and remembers nothing
// that it could compare it with.
//
//	t1  hub-source publishes a spec, and the broker is slow.
//	t2  The work is deleted; the agent is rid of it, says so, and forgets it.
//	t3  The agent is restarted.
//	t4  The spec of t1 comes. It names the agent's session before t3, and so it is dropped.
//
// No clock and no disk has to be right. Sessions get their numbers from the clock of their
// party when they begin; where that went back, the other one's events say that it has heard
// of a higher number, and the party goes on above that. Who drops an event says so by an event
// of its own, so that both have heard of each other after one round trip.
//
// Whether a party is there nobody on the way knows either: [ConnectionStateOf].
//
// Parties of Open Cluster Management say none of this. Their events count as they come, and
// are ordered by version and sequence id.
package sessionfence
