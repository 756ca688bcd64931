// Package store is the broker's memory: for every (data type, cluster,
// resource id) one record with the latest accepted spec and the latest accepted
// status. The broker decides nothing itself about versions, owners and names:
// [Decide] does, a pure function over what the store holds, and every engine
// runs it inside its commit. Engines are packages below this one, with what they
// keep in memory in package resident; storetest holds the suite they must all pass.
//
// # The life of a record
//
//	                                      create, update
//	       ┌───────────────────────────────────────────────────────────────────┐
//	       ▼                                                                   │
//	none ─────► live ──────────► tombstone ───────────────────────────────► grave ─────► none
//	   publish   ▲      delete      │ ▲                 Deleted, forget            seen
//	             │           create │ │ delete
//	             │                  ▼ │
//	             └────────── tombstone + create
//	               Deleted
//
// A record is live; or a tombstone: its source deleted the work, the cluster has not
// confirmed yet, and the last spec is kept; or a grave: confirmed, and id, version,
// sequence id and the final status are kept until the source has seen it. Behind a
// tombstone one spec can wait, without a revision: of a new life of the same id (+
// create), or of the next work of the same name (+ next), whose id has no record of its
// own then (waiting). It becomes live when the tombstone becomes a grave.
//
// What an event or an operator does to the record of an id, where its cluster has
// had an agent. In parentheses: nothing is written, and the answer.
//
//	              none         live         tombstone    + create     + next       waiting      grave
//	create        live         live         + create     + create     + create     waiting      live
//	update        live         live         (stale)      + create     (stale)      waiting      live
//	older update  live         (stale)      (stale)      (stale)      (stale)      (stale)      (stale)
//	delete        tombstone    tombstone    tombstone    tombstone    + next       waiting      tombstone
//	status        (ignored)    live         tombstone    + create     + next       (ignored)    (ignored)
//	Deleted       (ignored)    (specagain)  grave        live         grave        (ignored)    (ignored)
//	seen          (ignored)    (ignored)    (ignored)    (ignored)    (ignored)    (ignored)    none
//	forget        (ignored)    grave        grave        live         grave        grave        none
//	drop          (ignored)    none         none         none         none         none         none
//
// Which publish wins: the one with the higher or an equal version, unless its tag says
// that nothing changed. A source that has seen the stored revision wins whatever the
// versions, and only if that revision is still there (Supersedes, IfRevision). Only the
// owner publishes, and a name has one record. A status wins by its sequence id.
//
// A delete makes no tombstone where no agent of the cluster ever subscribed and no status
// came: then nobody can confirm, and the record becomes a grave at once. Its source having
// seen it does not end such a grave ([Meta.CollectableWhenAcked]): an agent that comes later and
// lists the work, because it has it from before a loss of the store, is told to delete it.
// A grave answers its own deletion when that comes again, not another one.
//
// [Decide] chooses by kind of op, then by state (cases.go): putSpec, putLive, putTombstone,
// putNew, deleteUnknown, putQueued; putStatus; acked, forget, drop, adopt, takeOver. What
// it chooses is a step in the life of a record, which one function writes (transitions.go): begin,
// revise, entomb, revive, wait, bury, report, confirm, hand.
//
// # Revisions
//
// Every accepted write gets the next revision, one counter per store, assigned
// in commit order and never reused. A record's spec and status carry the
// revision of their last change, so the change feed ([Store.Changes]) holds each
// at most once: a reader that lags gets the latest state of each and never
// "too old". Each revision belongs to exactly one entry of the feed.
//
// # Names
//
// A name belongs to one record per (cluster, data type): the live record or
// tombstone that carries it, or the tombstone behind which a spec with that
// name waits. Graves hold no name. An event without a name is held under its
// resource id, as agents do.
package store
