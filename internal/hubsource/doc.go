// Package hubsource carries the ManifestWorks of one hub to a broker and the
// status of its clusters back: informers in, CloudEvents out; status events in,
// patches of the status subresource out.
//
// Package core decides; read its comment first. [Source] is the shell around it: leader
// election, informers, the broker session and the workers that carry the effects out. Each
// life of the hub that the core begins has informers and a session of its own.
//
// What holds for every work:
//
//   - the id towards the broker is the work's Kubernetes UID, its version the
//     generation;
//   - one publish and one hub write are in flight at most; what changes in the
//     meantime is coalesced, the latest wins;
//   - the finalizer is on the work before its first event, and leaves it only
//     when the cluster (or the broker, for a cluster that never had the work)
//     confirmed the deletion;
//   - a work that has it already when the process begins, and of which the broker
//     has no record, is published only after the hub said that it is there: the
//     informer may lag behind its end;
//   - a deletion is published for a deletionTimestamp, or for an object whose
//     deletion the hub reported and whose live GET says NotFound. What is merely
//     missing, from a list or beside the broker's records, is deleted on a
//     condition, after a live GET, and only as long as nothing casts doubt on the
//     hub; else a person decides.
//
// On each connection works are compared with the broker's inventory, cluster by
// cluster, and only what differs is published. A broker that has none gets
// everything. Statuses continue from a cursor, which is kept on the hub, so that
// a hub that is restored takes it back with it.
//
// Memory is bounded by the number of works: per work one pending status and one
// scheduled retry.
package hubsource
