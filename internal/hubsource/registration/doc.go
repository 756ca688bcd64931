// Package registration is the registration server in hub-source. It handles requests of agents to the hub apart
// from works, and publishes the objects that agents may see. A broker relays; agents never reach the hub's
// kube-apiserver.
//
// A [Server] runs while this replica leads, over broker sessions of its own, beside the one for works. An agent may
// use any replica of the broker, so a [link] keeps a session with each of them. Three kinds of messages cross it:
//
//   - Objects go out: ManagedClusters, their CSRs, Leases and add-ons are watched, and published as they
//     change. Each subscription starts with all objects, then each change follows. Fast changes are coalesced
//     per object. A type that the hub lacks is empty.
//   - Requests come in, and each is answered. There are a few workers, one per cluster at a time, and clusters
//     share them fairly. A request becomes one call of the hub's API.
//   - Keys go out: the broker verifies the tokens of the hub's service accounts with them. They include the
//     authorities for certificates signed by the controllers of Open Cluster Management.
//
// Pure functions decide what a request may do: [decide] in request.go checks the rights of the client. The
// files cluster.go, csr.go, addon.go and event.go rebuild the object from allow lists. No object of an agent is
// passed on unread: an agent cannot accept its own cluster, and cannot raise its rights. Only
// spec.hubAcceptsClient of a ManagedCluster makes it accepted, never a condition, because agents can write
// conditions.
//
// Renewals of Leases are not requests and have no answer; leases.go decides which Lease is written when.
//
// This package covers all ManagedClusters of the hub. The selection of hub-source applies to works: a joining
// cluster has no labels yet for a selection.
package registration
