// Package clustercontroller is what a fleet needs on a hub that has none of the registration
// controllers of Open Cluster Management: who is a member, and what the hub keeps of it.
// hub-source runs it while it leads, beside the works. Where those controllers run, it rests.
//
// For each ManagedCluster it keeps
//
//   - the namespace and the Lease of an accepted cluster, and a finalizer on it;
//   - the condition HubAcceptedManagedCluster, which follows spec.hubAcceptsClient, because
//     agents look at the condition;
//   - Available=Unknown, also on the add-ons, when no renewal of the Lease was seen for five
//     periods, and the taints that follow from Available, but for the silence of an outage: without a
//     session with the broker, or of most agents at once, silence says nothing of an agent (outage.go);
//   - ClockSynced=True from the first renewal on: the times in renewals are hub-source's, whatever
//     the clock of a cluster says, and an agent of which the hub says otherwise reports nothing;
//   - the order in which a deleted cluster goes: its add-ons, its works, and then itself. Its
//     namespace stays.
//
// For each CertificateSigningRequest (CSR) of the signer open-cluster-management.io/grpc it
// says whether it is approved, as far as no person has to, and it signs what is approved:
//
//   - a renewal is approved while the cluster is accepted, else denied;
//   - the first request of a cluster waits for a person, or for the rule of users whose
//     clusters are accepted by themselves: while the cluster has not joined, and for one key;
//   - what is signed has the subject of the request, the use of a client, and nothing else.
//
// [decide] and [validate] decide, from what they are given; [Controller] watches, asks them, and
// does what they say. It decides about one cluster at a time, from the present state of all
// that belongs to it, so that a lost, late or repeated write costs work, never correctness.
//
// Silence is measured on the clock of this process: from when it saw the Lease change, or from
// when it began. So neither a clock that is wrong nor the time in which no hub-source ran makes
// a cluster look silent.
//
// Memory is bounded by the clusters of the hub and their CSRs.
package clustercontroller
