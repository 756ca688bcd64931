// Package feedback reads out of an object the values that a ManifestWork wants
// to see on the hub.
//
// It is pure. [Reader.Read] takes an object and the feedback rules of its
// manifest, and returns the values and what is wrong with the rules. Rules are
// written by whoever may write works: a path that would take for ever on the
// object is refused, and no value is returned that the hub would refuse, because
// the hub refuses the whole status with it.
package feedback
