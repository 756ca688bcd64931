// Package feedback reads the values of an object that a ManifestWork requests for its status.
//
// It is pure. [Reader.Read] takes an object and the feedback rules of its manifest. It returns the values and
// the errors of the rules. Authors of works write the rules, so a path that would take too long on the object
// is rejected. A value that the hub would reject is not returned, because the hub would reject the whole status
// with it.
package feedback
