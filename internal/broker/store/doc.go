// Package store keeps the broker's records: for each (data type, cluster, resource id) one record with the
// latest accepted spec and the latest accepted status. Bookmarks are small values beside them. [Decide] makes all
// decisions about versions, owners and names. It is a pure function of what is stored, and each engine runs it
// inside its commit. Engines are packages below this one. Package memindex has the indexes that they keep in
// memory; package storetest has the suite that all engines must pass.
//
// # States of a record
//
//	                                      create, update
//	       ┌───────────────────────────────────────────────────────────────────┐
//	       ▼                                                                   │
//	none ─────► live ──────────► tombstone ─────────────────────────────► confirmed ─────► none
//	   publish   ▲      delete      │ ▲                 Deleted, forget             seen
//	             │           create │ │ delete
//	             │                  ▼ │
//	             └────────── tombstone + same id
//	               Deleted
//
// A record is in one of three states:
//
//   - live;
//   - tombstone: its source deleted the work, and the cluster has not confirmed yet; the last spec is kept;
//   - confirmed tombstone (confirmed in the tables): id, version, sequence id and final status are kept until
//     the source has acknowledged them.
//
// One spec can be queued behind a tombstone, without a revision. It is for the same id (+ same id), or it is
// the next work of the same name (+ next id). The id of such a next work has no record of its own; its column
// is "waiting". A queued spec becomes live when the tombstone is confirmed.
//
// The table shows the effect of an event or an operator on the record of an id whose cluster had an agent. An
// entry in parentheses is the outcome of an op that writes nothing. Row seen: the source acknowledged the final
// status.
//
//	              none         live         tombstone    + same id    + next id    waiting      confirmed
//	create        live         live         + same id    + same id    + same id    waiting      live
//	update        live         live         (stale)      + same id    (stale)      waiting      live
//	older update  live         (stale)      (stale)      (stale)      (stale)      (stale)      (stale)
//	delete        tombstone    tombstone    tombstone    tombstone    + next id    waiting      tombstone
//	status        (ignored)    live         tombstone    + same id    + next id    (ignored)    (ignored)
//	Deleted       (ignored)    (specagain)  confirmed    live         confirmed    (ignored)    (ignored)
//	seen          (ignored)    (ignored)    (ignored)    (ignored)    (ignored)    (ignored)    none
//	forget        (ignored)    confirmed    confirmed    live         confirmed    confirmed    none
//	drop          (ignored)    none         none         none         none         none         none
//
// A publish wins if its version is 0, equal or higher, unless its tag shows that nothing changed. With
// Supersedes or IfRevision, the spec wins for any version, but only if the named revision is still stored. Only
// the owner publishes, and a name has one record. A status wins by its sequence id.
//
// A delete makes no tombstone if no agent of the cluster ever subscribed and no status came. Then no agent can
// confirm, and the record becomes a confirmed tombstone at once. The acknowledgement of its source does not
// remove such a record ([Meta.CollectableWhenAcked]). An agent may subscribe later and list the work from
// before a loss of the store. That agent is sent the deletion. A confirmed tombstone answers a repetition of
// its own deletion, and no other deletion.
//
// A tombstone from before the store was opened is uncertain: the store may have lost a later change that undid the
// deletion. If its source publishes the deletion again, or a spec that is queued behind it, the tombstone gets a new
// revision. So a deletion with a revision of this incarnation is certain.
//
// [Decide] chooses by kind of op, then by state. cases.go has the cases: putSpec, putLive, putTombstone,
// putNew, deleteUnknown, putQueued; putStatus; acked, forget, drop, adopt, takeOver. The result is one
// transition of the record, and one function writes each transition. transitions.go has them: createRecord,
// revise, createTombstone, undelete, wait, confirmWithoutCluster, report, confirm, changeOwner.
//
// # Revisions
//
// Each accepted write gets the next revision: one counter per store, assigned in commit order and never reused.
// The spec and the status of a record each carry the revision of their last change. So the change feed
// ([Feed]) holds each at most once. A reader that lags gets the latest state of each. Each revision belongs to
// exactly one entry of the feed.
//
// Removals stay in the feed until every process that uses the store has passed them. So what a process keeps in
// memory is a function of the feed: it loads the state once, and then follows the changes ([Replica]).
//
// # Bookmarks
//
// Beside the records the store keeps small values under names, such as the denied clients, and the binding of
// each cluster name to a cluster uid. An op sets them in the same commit as records. Each change has a revision
// and an entry in the feed ([BookmarkPart]), which carries the value.
//
// # Names
//
// A name belongs to one record per (cluster, data type). That is the live record or tombstone that has it, or
// the tombstone behind which a spec with that name is queued. Confirmed tombstones own no name. An event
// without a name uses its resource id as the name, as agents do.
package store
