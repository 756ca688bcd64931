// Package journal keeps the desired state of one agent on disk, so that an
// agent that starts while the broker is out of reach knows what is wanted, and
// one that starts while it is within reach asks only for what changed.
//
// A [Journal] owns a directory with two files:
//
//	lock   held while a process uses the directory
//	log    records, one after the other
//
// A record of the log is one of these, and replaces the one before of the same
// kind, or about the same work:
//
//	head      whose works these are (cluster, hub and agent), a random name of this
//	          directory for the agent's Lease, the cursor up to which the works
//	          cover the broker's history, and up to where sequence ids may have been
//	          used
//	work      the latest spec of a work, as received
//	gone      a work that is not wanted any more
//	reported  the statuses that the broker accepted, written now and then
//	left      how objects were left, written now and then
//
// When less than half of the log counts, and at the first sync after a start that
// finds a work to be gone, what counts is copied to a new file, which then replaces
// the log: that is the end of what a deleted work said. Works can hold Secrets: files
// have mode 0600, the directory has 0700.
//
// # What holds after a crash
//
// A spec that [Journal.Put] has taken survives the end of the process, but not
// yet a power loss: that takes [Journal.Checkpoint], which syncs the log, then
// adds the cursor and syncs again. So the cursor never covers a work that is not
// on disk. Each record has a checksum of its own and stands on a line of its own, so
// that damage costs what it hits and no more. Nobody knows which record that was:
// the cursor is dropped, the broker compares everything and sends what is missing.
//
// # When the directory fails
//
// Every failure of the file system is an [*Error]; [Reason] says whether the
// directory is full or broken. The Journal does not note what it could not write:
// that is up to the caller, who calls Checkpoint only when all works are there.
// What it has written and cannot read any more is in [Journal.Lost].
//
// A directory of the former form, with a file for each work, is read once and
// becomes a log.
package journal
