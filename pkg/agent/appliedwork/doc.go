// Package appliedwork keeps the list of what a work has on the cluster: one
// AppliedManifestWork per work.
//
// What may come into existence is recorded before it is made, without a uid,
// and with its uid afterwards. What a work no longer wants is found by
// difference and removed under the condition of that uid; it stays on the list
// until the cluster confirmed that it is gone. So neither a crash nor a failed
// deletion loses an object.
//
// [Record] is one AppliedManifestWork as it was read, [Store] reads and writes
// it, [Remover] removes objects. What the list should be is computed by the
// pure functions of list.go.
package appliedwork
