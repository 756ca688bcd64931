// Package clustercontroller replaces the registration controllers of Open Cluster Management on a hub without
// them. It decides which clusters are members, and keeps their objects on the hub. hub-source runs it while it
// leads, beside the works. Where those controllers run, it is inactive.
//
// For each ManagedCluster it keeps:
//
//   - the namespace and the Lease of an accepted cluster, and a finalizer on it;
//   - the condition HubAcceptedManagedCluster, which follows spec.hubAcceptsClient, because agents read the condition;
//   - Available=Unknown, also on the add-ons, when no renewal of the Lease was seen for five periods, and the
//     taints that follow from Available. Outages are excluded: without a broker session, or if most agents fall
//     silent together, silence does not show that an agent is down (outage.go);
//   - ClockSynced=True from the first renewal on. The times in renewals are those of hub-source, whatever the
//     clock of a cluster shows. An agent that sees ClockSynced=False reports nothing;
//   - the order in which a deleted cluster is removed: its add-ons, its works, and then itself. Its namespace stays.
//
// It decides about each CertificateSigningRequest (CSR) of the signer open-cluster-management.io/grpc, unless
// an operator has to, and signs approved ones:
//
//   - a renewal is approved while the cluster is accepted, otherwise denied;
//   - the first request of a cluster waits for an operator, or for the rule of users whose clusters are
//     accepted automatically. That rule applies for one key, and while the cluster has not joined;
//   - a certificate has the subject of the request, the usage of a client, and nothing else.
//
// [decide] and [validate] are pure functions; [Controller] watches, calls them, and executes the result. It
// decides about one cluster at a time, from the present state of all its objects. So a lost, late or repeated
// write costs time, never correctness.
//
// Silence is measured on the clock of this process, from the last observed change of the Lease, or from the
// start of the process. So neither a wrong clock nor a time without a running hub-source makes a cluster look
// silent.
//
// Memory is bounded by the clusters of the hub and their CSRs.
package clustercontroller
