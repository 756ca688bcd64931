// Package agent brings the works of one cluster onto it, keeps them there, and
// reports how they are.
//
// An [Agent] is the program: it subscribes to its cluster's works, runs workers
// and watches, and publishes statuses. What it decides is in [Core], which has
// no goroutine, clock or connection of its own: events go in with
// [Core.Handle], [Core.Reconcile] brings one work in line with the cluster,
// [Core.TakeReport] gives out statuses. A simulation drives the same Core one
// step at a time.
//
// The parts below: package desired holds what is wanted, apply brings objects
// onto the cluster, inventory records them in AppliedManifestWorks and removes
// them, conditions builds the status, report is the outbox, drift notices
// changes by others, and cluster is the cluster itself.
package agent
