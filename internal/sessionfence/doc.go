// Package sessionfence decides which events of another client are accepted behind a stateless broker, such as a
// third-party MQTT broker. Such a broker may deliver an event twice, late, after its successors, or not at all,
// and it has no records.
//
// Each Hawser client has a [Tracker]. Its events carry a [Stamp]: the session of the sender, and the session of
// the receiver that the sender knew. The rule is:
//
//	an event is accepted if it is of the latest known session of its sender, and
//	its sender knew the present session of the receiver when it made the event
//
// The first part drops late events of an earlier process or connection of the sender. The second part drops
// events for an earlier process of the receiver: the present one has no state to compare them with.
//
// Scenario:
//
//	t1: hub-source publishes a spec, and the broker is slow.
//	t2: the work is deleted; the agent removes its objects, reports it, and forgets the work.
//	t3: the agent restarts.
//	t4: the spec of t1 arrives. It names the agent's session before t3.
//
// Result: the agent drops it.
//
// No clock and no disk has to be right. A session gets its number from the clock of its client at its begin. If
// that clock went back, the events of the peers name a higher number, and the client continues above it. A
// receiver that drops an event answers with one of its own. After one round trip both sides know each other's
// session.
//
// The broker does not report which clients are connected either: see [ConnectionStateOf].
//
// Clients of Open Cluster Management send no stamps. Their events are accepted as they arrive, and ordered by
// version and sequence id.
package sessionfence
