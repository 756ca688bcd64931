// Package pebble is the embedded store: one directory, no set-up. Every commit
// is one batch of Pebble and one sync of its log; what is acknowledged survives
// a power loss, and nothing is visible to readers before it is durable.
//
// # On disk
//
// The first byte of a key says what it leads to. The kinds sort so that one pass
// over all keys meets a record before everything that belongs to it:
//
//	b name                         a bookmark            ┐
//	c cluster, type                the uid of its agent  │
//	e number of the opening        a term                │ read by Open, and kept
//	h                              the last revision     │ in memory (state)
//	i                              the epoch             │
//	m type, cluster, id            a record, no payload  ┘
//	n type, cluster, name     ──►  id                    ┐ lead to a record
//	o owner, type, cluster, id                           │ (index.go)
//	r revision                ──►  type, cluster, id     ┘ the change feed
//	s type, cluster, id            its spec              ┐ belong to a record
//	t type, cluster, id            its status            │ (index.go)
//	w type, cluster, id            the event that waits  ┘
//
// Spec and status are values of their own so that a status does not rewrite its
// spec. Which values lead or belong to a record is a function of the record: a
// commit writes the difference between those before and after, and a check
// compares those of all records with the disk. So a record's life is
//
//	created   m n o r₁ s
//	status    m n o r₁ s r₂ t              the others are not touched
//	deleted   m n o r₃ s r₂ t              a tombstone: the last spec is kept
//	  a create waits behind it             + n of its name, w
//	confirmed m   o      r₄ t              a grave
//	seen      nothing
//
// What changed in a scope needs no index of its own: its revisions are in memory
// ([memindex.Summary]), and the feed leads from each to its record. Every value starts
// with a format byte, flags and a key id and ends with a CRC-32C over storage
// key and value: damage is named ([store.DamageError]), a newer format refused
// ([FormatError]). A file CLEAN says where the store was closed, and with which
// manifest and logs, so that one that lost its end is not taken for a torn one.
// After a crash the two cannot be told apart; then the new term begins below the
// lost revisions, and whoever has a cursor from there starts anew.
//
// # Backups
//
// [Store.Backup] sends the files of a store that is open, [Clone] those of one that
// is not; [Receive] and Copy make a store of what comes. It is marked by a file
// INCOMPLETE until it is whole and on disk. [Check] reads all of a store.
//
// # Failure
//
// The first write or sync that fails is the last one: nothing is acknowledged
// after it, and [Store.Fatal] tells whoever owns the store to end the process.
// What is on disk then is known only to the next opening. A value that cannot be read
// turns the store read-only instead: readers go on with what was durable, Commit
// returns [store.ErrReadOnly]. A full disk, or no file descriptor left, is waited for,
// and a part of the disk is kept for bad times: see room. What a store does not take,
// and why, is in [Store.Err].
package pebble
