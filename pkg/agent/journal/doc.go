// Package journal stores the desired state of one agent on disk. An agent that starts without a connection to
// the broker then knows the desired state. With a connection it requests only the changes.
//
// A [Journal] owns a directory with two files:
//
//	lock   locked while a process uses the directory
//	log    records, one after the other
//
// Each record of the log is one of these. It replaces the previous one of the same kind, or of the same work:
//
//	head      the binding of the works (cluster, hub and agent), a random name of this
//	          directory for the agent's Lease, the cursor up to which the works cover
//	          the broker's history, and the limit up to which sequence ids may have
//	          been used
//	work      the latest spec of a work, as received
//	gone      a work that is no longer wanted
//	reported  the statuses that the broker accepted, written periodically
//	left      the state in which objects were left, written periodically
//
// The log is compacted when less than half of it is current, and at the first sync after a start that finds a
// removed work. The current records are copied to a new file, which then replaces the log and drops the content
// of deleted works. Works can contain Secrets: files have mode 0600, the directory has 0700.
//
// # Guarantees after a crash
//
// A spec that [Journal.Put] has accepted survives the end of the process. It survives a power loss only after
// [Journal.Checkpoint], which syncs the log, then adds the cursor and syncs again. So the cursor never covers a
// work that is not on disk. Each record has its own checksum and its own line, so damage affects only the
// damaged records. It is unknown which works they contained. Therefore the cursor is dropped; the broker
// compares all works and sends the missing ones.
//
// # Failures of the directory
//
// Every failure of the file system is an [*Error]; [Reason] shows whether the directory is full or broken. The
// Journal does not remember records that it could not write. The caller must do that, and calls Checkpoint only
// when all works are on disk. Records that cannot be read at the start are counted in [LoadResult].
//
// A directory of the former format, with one file per work, is read once and converted to a log.
package journal
