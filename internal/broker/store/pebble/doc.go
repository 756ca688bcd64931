// Package pebble is the embedded store: one directory, no set-up. Each commit is one Pebble batch and one sync
// of its log. Acknowledged writes survive a power loss, and readers see only durable writes.
//
// # On disk
//
// The first byte of a key is its kind. The kinds are ordered so that one pass over all keys reads a record
// before all its other values:
//
//	b name                         a bookmark            ┐
//	c cluster, type                the uid of its agent  │
//	e number of the opening        an incarnation        │ read by Open, and kept
//	h                              the last revision     │ in memory (memIndex)
//	i                              the store id          │
//	m type, cluster, id            a record, no payload  ┘
//	n type, cluster, name     ──►  id                    ┐ lead to a record
//	o owner, type, cluster, id                           │ (index.go)
//	r revision                ──►  type, cluster, id     ┘ the change feed
//	s type, cluster, id            its spec              ┐ belong to a record
//	t type, cluster, id            its status            │ (index.go)
//	w type, cluster, id            the queued event      ┘
//
// Spec and status are separate values, so a status does not rewrite its spec. The index entries and payloads of
// a record are a function of the record. A commit writes the difference between the old and the new ones. A
// check compares the expected ones of all records with the disk. So a record has these values:
//
//	created   m n o r₁ s
//	status    m n o r₁ s r₂ t              the others are not touched
//	deleted   m n o r₃ s r₂ t              a tombstone: the last spec is kept
//	  a create is queued behind it          + n of its name, w
//	confirmed m   o      r₄ t              a confirmed tombstone
//	acked     nothing
//
// The changes in a scope need no index on disk. Their revisions are in memory ([memindex.Summary]), and the
// feed leads from each revision to its record. Each value starts with a format byte, flags and a key id, and
// ends with a CRC-32C over storage key and value. So damage is detected at its key ([store.DamageError]), and a
// newer format is rejected ([value.FormatError]). A file CLEAN has the revision at which the store was closed, and
// the checksums of its manifest and logs. With it, a log that lost its end is detected as damage. Without it,
// after a crash, a lost end looks like a torn write. Then the new incarnation begins below the lost revisions,
// and a client with a lost revision in its cursor starts from the beginning.
//
// # Backups
//
// [Store.Backup] sends the files of an open store, [Clone] those of a closed one. [Receive] and Clone make a
// store of the received files. A file INCOMPLETE marks the directory until the store is complete and on disk.
// [Check] reads all of a store.
//
// # Failure
//
// After the first failed write or sync, the store acknowledges nothing more. [Store.Fatal] asks the owner of
// the store to end the process, because only the next opening can read the true content of the disk. A value
// that cannot be read makes the store read-only instead. Then readers continue with the durable data, and
// Commit returns [store.ErrReadOnly]. A full disk, or a lack of file descriptors, is temporary; spaceGuard has
// a reserve for it. [Store.Err] returns which writes are rejected, and why.
package pebble
