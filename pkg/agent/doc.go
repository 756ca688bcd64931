// Package agent brings the works of one cluster onto it, keeps them there, and
// reports how they are.
//
// An [Agent] is the program: it subscribes to its cluster's works, runs workers
// and watches, and publishes statuses. What it decides is in [Core], which has
// no goroutine, clock or connection of its own: events go in with
// [Core.Handle], [Core.Reconcile] brings one work in line with the cluster,
// [Core.NextReport] gives out statuses. A simulation drives the same Core one
// step at a time.
//
// A Core has parts, each with what it knows and a file of its own: works (what is wanted,
// and what is reported of it), link (the subscription), keeper (what is to be done on disk),
// strays (AppliedManifestWorks that no work claims) and roles. One mutex guards them all but
// the roles. A reconciliation is given the parts that it needs.
//
// What is wanted is on a [Journal] before it is acted upon, together with how far
// the agent is in the broker's history; checkpoints of the broker move that on
// and compare what is held with what there is. What no work explains is removed
// only on the proof of such a comparison.
//
// The parts below: package desired holds what is wanted, journal keeps it over
// restarts, apply brings objects onto the cluster, inventory records them in
// AppliedManifestWorks and removes them, conditions builds the status, report is
// the outbox, drift notices changes by others, and cluster is the cluster
// itself.
package agent
