// Package apply applies the objects of one work to a cluster.
//
// [Load] turns the manifests of a work into [Manifest] values, which identify their objects. [Applier.Plan]
// reads an object and plans the write; [Applier.Apply] executes it. In between the agent records in the
// AppliedManifestWork which objects may be created. Results in the order of the manifests are the input of the
// record, the conditions and the logs.
//
// Update depends on the kind: a table in rules.go has the kinds with a rule of their own, all others are
// replaced as a whole. ServerSideApply leaves the merge to the server. managedFields then show whether a write
// is needed, and which of the ignored fields belong to this agent. CreateOnly creates missing objects; ReadOnly
// only reads. Nothing is written without a difference. A write that the cluster rejects as invalid is not
// repeated while nothing changes: see [Rejected].
package apply
