// Package sim plays a whole Hawser fleet in one process: a hub, its hub source,
// a broker, agents on clusters, and parties that only speak OCM's protocol. The
// decisions are those of the real code; hub, clusters and network are models.
//
// Everything happens in steps, in a bubble of virtual time, in an order that
// follows from a seed; whatever a step sets in motion comes to rest before the
// next begins, so that a seed replays exactly. After each step, and again when
// the faults have ended and nothing moves any more, the promise of the design
// is checked by the numbers of its invariants.
//
// See README.md for how to run and extend it. There is nothing here but tests.
package sim
