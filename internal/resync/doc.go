// Package resync compares what a party holds with what the broker keeps and
// says what must be sent. It is pure: lists in, decisions out; every lookup is
// by key, so a comparison costs the sum of both sides, never the product.
//
// There are two comparisons. [Specs] takes the version list of an agent and is
// then asked, record by record, what that agent still needs. [Statuses] does
// the same with the status hashes of a source, or, on the agent's side, with
// those of a hub.
//
// Absence is never turned into a deletion here: an id that a party holds and
// no record explains is reported as an orphan, and that is all.
package resync
