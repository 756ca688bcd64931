// Package postgres is the store in a database of PostgreSQL 15 or newer, which several brokers share. Brokers that
// use one database are its replicas. Nothing connects them but the database.
//
// # Tables
//
//	store        the store id
//	incarnation  the openings of the database that cursors may name
//	log          one row per commit: number, token, head, entries        appended; cut at its low end
//	record       a record without payloads, and what it is found by      updated in place
//	payload      its spec, status and queued event
//	change       the change feed: revision ──► record
//	bookmark     bookmarks and bindings, each with its revision in the feed
//	removal      the removals of the feed; cut at its low end
//	replica      the positions of each replica in the log and in the feed, and when it reported them
//	schema       the version of the tables
//
// Records and payloads have the form and the checksums of package value, under the same keys as in the embedded
// store.
//
// # Commits
//
// commit.go has the two round trips of a commit, and the one of a replica that commits alone. An advisory lock serializes
// the commits of all replicas, and the last row of the log is the head of the store. So revisions have no gaps, and
// become visible in their order. No commit updates a row of the head. Beside an old snapshot, as of pg_dump, all versions
// of such a row would stay, and each commit would step over them.
//
// The lock belongs to the transaction, and the server ends the transaction of a replica that hangs.
//
// # Memory
//
// The memory of a replica (heads, digests, quota usage, bindings, bookmarks) is a function of the log, except for the
// records that it remembers while it commits alone. A replica loads it from one snapshot, and applies the rows of the log
// that follow. Each commit first applies the rows before it, under the lock, so it decides on the newest state. A replica
// that does not commit reads the log after a notification, every second, and before a client subscribes.
//
// Each row has a random token. A replica reads the row at its position again with those that follow. If the token
// differs, or if the row is missing, then the log was cut while the replica hung, or the database lost commits. After
// a cut the replica loads its memory again. After a loss of commits that it has seen, it begins an incarnation, and
// ends: a process follows one history only.
//
// # Incarnations
//
// Each commit reads the identity of the database: system identifier, timeline, oid of the database, start of the
// server. If it differs from that of the last incarnation, the commit begins a new one, behind the head that
// survived. So cursors up to that head stay valid after a restart or a failover that loses nothing. Cursors of lost
// commits are not valid.
//
// # Unknown results
//
// If a connection breaks after COMMIT was sent, the next attempt takes the lock and finds the token in the log, or it
// is not there and never will be. The client sends no cancel request: it would end the wait of a commit for its
// synchronous standby, and make data visible that a failover may lose.
//
// # Poolers
//
// PgBouncer in transaction mode gives each transaction another session. Behind it the store uses no prepared
// statement and no LISTEN, sets all limits in the transaction, and asks in each transaction whether the server is a
// standby.
package postgres
