// Package resync compares what a party holds with what the broker keeps and
// says what must be sent. It is pure: maps in, decisions out; every lookup is
// by key, so a comparison costs the sum of both sides, never the product.
//
// Absence is never turned into a deletion here: an id that a party holds and
// no record explains is reported as an orphan, and that is all.
package resync
