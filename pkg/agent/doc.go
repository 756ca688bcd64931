// Package agent applies the works of one cluster, keeps their objects as wanted, and reports their status.
//
// An [Agent] is the program. It subscribes to the works of its cluster, runs workers and watches, and publishes
// statuses. Its decisions are in [Core], which has no goroutine, clock or connection of its own. [Core.Handle]
// takes events, [Core.Reconcile] brings one work in line with the cluster, and [Core.NextReport] returns
// statuses. A simulation drives the same Core step by step.
//
// A Core has parts, each with its own state and file:
//   - works: the desired and the reported state;
//   - subscriptionState: the subscription;
//   - persister: writes to disk;
//   - orphans: AppliedManifestWorks without a work;
//   - roleState: role changes.
//
// One mutex guards all of them except roleState. A reconciliation gets the parts that it needs.
//
// The desired state is written to a [Journal] before it is acted upon, together with the cursor in the broker's
// history. Checkpoints of the broker move the cursor and compare the held works with the broker's records.
// Orphans are removed only after such a comparison proved them.
//
// The packages below: desired holds the desired state and journal stores it across restarts. apply writes
// objects to the cluster. appliedwork records them in AppliedManifestWorks and removes them. conditions builds
// the status, outbox sends it, drift notices changes by others, and kubeclient accesses the cluster.
package agent
