// Package appliedwork records which objects a work has on the cluster, in one AppliedManifestWork per work.
//
// An object is recorded before its creation without a uid, and afterwards with its uid. Objects that a work no
// longer wants are found by comparison, and removed with that uid as precondition. They stay in the list until
// the cluster has confirmed that they are gone. So neither a crash nor a failed deletion loses an object.
//
// [Record] is one AppliedManifestWork as it was read. [Store] reads and writes it. [Remover] removes objects.
// The pure functions of list.go compute the list.
package appliedwork
