// Package pebble is the embedded store: one directory, no set-up. Every commit
// is one batch of Pebble and one sync of its log; what is acknowledged survives
// a power loss, and nothing is visible to readers before it is durable.
//
// # On disk
//
// Meta, spec, status and what waits of a record are separate values, so that a
// status does not rewrite its spec. Beside them are an index of names, one of
// owners, and one of revisions, which is the change feed; and bookmarks. What
// changed in a scope needs no index of its own: its revisions are in memory
// ([store.Tally]), and the feed leads from each to its record. Every value starts
// with a format byte, flags and a key id and ends with a CRC-32C over storage
// key and value: damage is named ([store.DamageError]), a newer format refused
// ([FormatError]). A file CLEAN says where the store was closed, so that a log
// that lost its end is not taken for a torn one. After a crash the two cannot be
// told apart; then the new term begins below the lost revisions, and whoever
// has a cursor from there starts anew.
//
// # Backups
//
// [Store.Backup] copies a store that is open, [Copy] and [Receive] one that is
// not, or that comes from elsewhere, and [Check] reads all of one. A copy is
// marked by a file INCOMPLETE until it is whole and on disk.
//
// # Failure
//
// The first failed write, sync or checksum turns the store read-only: readers
// go on with what was durable, Commit returns [store.ErrReadOnly], the cause is
// in [Store.Err]. Pebble never ends the process: its fatal errors become that
// state, and a write error never reaches the code in it that would panic (see
// guard).
package pebble
