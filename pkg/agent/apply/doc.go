// Package apply brings the objects of one work onto a cluster.
//
// [Load] turns the manifests of a work into [Manifest] values that know which
// object they stand for. [Applier.Plan] reads an object and says what would
// have to be written; [Applier.Apply] writes it. Between the two the agent
// records in its inventory what may come into existence. Results in the order
// of the manifests are what inventory, conditions and logs are derived from.
//
// What Update means depends on the kind: a table in rules.go holds the kinds
// with a rule of their own, everything else is replaced as a whole.
// ServerSideApply leaves the merging to the server; what the server writes down
// about it in managedFields tells whether there is anything to send, and which of
// the fields that are to be left alone are ours. CreateOnly makes what is missing,
// ReadOnly only looks. Nothing is written without a difference, and what the
// cluster finds wrong in itself is not written again while nothing changes: see
// [Rejected].
package apply
