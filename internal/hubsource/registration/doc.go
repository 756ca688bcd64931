// Package registration is hub-source as the server of registration: what agents ask of the hub
// besides works, and what they may see of it. A broker relays; agents never reach the hub's
// kube-apiserver.
//
// A [Server] runs while this replica leads, over a session of its own with the broker, beside the
// one for works. Three things cross it:
//
//   - objects go out: ManagedClusters, their CSRs, Leases and add-ons are watched, and published
//     as they change. After each subscription everything is said once, then each change; what
//     changes faster than it is taken is coalesced per object. A type that the hub lacks is empty.
//   - requests come in, and each is answered: a few workers, one for a cluster at a time, and
//     clusters take turns. The request becomes one call of the hub's API.
//   - keys go out, by which the broker verifies the tokens of the hub's service accounts, and with them
//     the authorities by which it verifies certificates that Open Cluster Management's controllers signed.
//
// What a request may do is decided by pure functions: [decide] in request.go says who may ask for
// what, and cluster.go, csr.go, addon.go and event.go rebuild what may reach the hub, from lists of
// what is allowed. Nothing that an agent sends is passed on unread: it cannot accept itself, and
// cannot raise what it is. A cluster counts as accepted by spec.hubAcceptsClient of its
// ManagedCluster alone, never by a condition, which agents can write.
//
// Renewals of Leases are not requests: they have no answer, leases.go says when which is written.
//
// Everything here concerns all ManagedClusters of the hub. The selection of hub-source is for
// works: a cluster that joins has no labels yet by which it could be selected.
package registration
