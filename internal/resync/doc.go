// Package resync compares what a client holds with the records of the broker, and decides what must be sent. It
// is pure: lists in, decisions out. Every lookup is by key, so a comparison costs the sum of both sides, never
// the product.
//
// There are two comparisons. [Specs] takes the version list of an agent, and then decides for each record what
// that agent still needs. [Statuses] does the same with the status hashes of a source or, on the agent's side,
// with those of a hub.
//
// Absence never causes a deletion here: an id that a client holds without a record is only reported as an
// orphan.
package resync
