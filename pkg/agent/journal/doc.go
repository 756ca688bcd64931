// Package journal keeps the desired state of one agent on disk, so that an
// agent that starts while the broker is out of reach knows what is wanted, and
// one that starts while it is within reach asks only for what changed.
//
// A [Journal] owns a directory:
//
//	lock          held while a process uses the directory
//	instance      a random name of this directory, for the agent's Lease
//	binding       whose works these are: cluster, hub and agent
//	cursor        how far the broker's history is covered by works/
//	reported      the statuses that the broker accepted, written now and then
//	left          how objects were left, written now and then
//	sequence      up to where sequence ids may have been used
//	works/NAME    the latest spec of a work, as received; NAME is the SHA-256 of
//	              its resource id in hex
//
// Every file begins with a format byte and a byte of flags and ends with a
// CRC-32C over its name and all before; a file is replaced at once by a rename.
// Works can hold Secrets: files have mode 0600, works/ has 0700.
//
// # What holds after a crash
//
// A spec that [Journal.Put] has taken survives the end of the process, but not
// yet a power loss: that takes [Journal.Checkpoint], which syncs all works, then
// writes the cursor and syncs it. So the cursor never covers a work that is not
// on disk. Whatever else happens to a file is noticed by its checksum: a file
// that cannot be used is counted and removed, the cursor before it: the broker
// then compares everything and sends what is missing.
//
// # When the directory fails
//
// Every failure of the file system is an [*Error]; [Reason] says whether the
// directory is full or broken. The journal goes on where it can: it
// remembers which works are not on disk as they were given ([Journal.Dirty]), and
// until all of them were put again or removed no Checkpoint succeeds.
package journal
