// Package hubsource delivers the ManifestWorks of one hub to a broker, and the status of its clusters to the
// hub. Works come from informers and go out as CloudEvents. Status events come in and become patches of the
// status subresource.
//
// Package core decides; read its comment first. [Source] is the shell around it: leader election, informers,
// the broker session, and the workers that execute the effects. Each hub epoch that the core begins has its own
// informers and broker session.
//
// For every work:
//
//   - Its id at the broker is its Kubernetes UID, its version is the generation.
//   - At most one publish and one write to the hub are in flight. Changes meanwhile are coalesced; the latest wins.
//   - The finalizer is on the work before its first event. It is removed only after the cluster confirmed the
//     deletion, or the broker did for a cluster that never had the work.
//   - A work may have the finalizer when the process begins, while the broker has no record of it. It is
//     published only after the hub itself confirmed that it exists, because the informer may lag behind its
//     deletion.
//   - A deletion is published for a deletionTimestamp, or for an object whose deletion the hub reported and
//     whose live GET returns NotFound. A work may be missing from a list, or only the
//     broker may have it. It is deleted only after a live GET and without rollback suspicion. Otherwise an operator
//     decides.
//
// On each connection, works are compared with the broker's inventory, cluster by cluster, and only differences
// are published. A broker without an inventory gets all works. Statuses continue from a cursor, which is kept
// on the hub, so that a restore of the hub takes it back too.
//
// Memory is bounded by the number of works: one pending status and one scheduled retry per work.
package hubsource
