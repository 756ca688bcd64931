// Package registration makes a cluster a member of a fleet and keeps it one. It requests a client certificate
// from the hub with the credentials of the bootstrap file, which an operator gave to the agent. It stores key
// and certificate in a Secret and renews them. It shows that the cluster is alive: by the Lease and the status
// of its ManagedCluster.
//
//	begin ──► bootstrapping: create ManagedCluster and CertificateSigningRequest,
//	 ▲        wait until the hub has approved and signed
//	 │              │ certificate
//	 │              ▼
//	 │        registered: wait until the hub accepts the cluster, then report its status,
//	 │        renew the Lease and, after four fifths of its validity, the certificate
//	 │              │
//	 ╰──────────────╯ the broker refuses the certificate, and it has expired; or the hub has
//	                  no such cluster or refuses it, and there is another bootstrap file
//
// A certificate that was valid is kept until there is another one, and retried. A broker that refuses it may
// accept it a minute later, when the bootstrap token has expired. An expiry by the local clock alone is no
// reason to drop it: the broker decides.
//
// The hub accepts a cluster by spec.hubAcceptsClient of its ManagedCluster, never by a condition.
//
// [Core] makes the decisions. It has no clock, goroutine or socket: it receives events and returns effects.
// [Registration] drives it with sessions to the broker, a [Store] and a [Reader] of the managed cluster.
//
// The private key is created here, written to the Secret before the request is sent, and never sent itself. So
// after a restart at any time the agent has the key of its request:
//
// Scenario:
//
//	t1: key and name of a request are in the Secret.
//	t2: the request is published.
//	t3: the agent is killed.
//	t4: it restarts, publishes the same request, and receives the answer that it exists.
//
// Result: the certificate that the hub issues matches the key.
package registration
