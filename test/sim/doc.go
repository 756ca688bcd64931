// Package sim runs a whole Hawser fleet in one process: a hub, its hub-source, a broker, agents on clusters,
// and OCM clients. The decisions are those of the real code. Hub, clusters and network are models.
//
// Everything happens in steps, in a bubble of virtual time, in an order that follows from a seed. Everything
// that a step starts is finished before the next step begins. So a seed replays exactly. The invariants I1–I8
// are checked after each step, and again at the end, when the faults are over and nothing is pending.
//
// See README.md for how to run and extend it. The package contains only tests.
package sim
