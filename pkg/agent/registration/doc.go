// Package registration makes a cluster part of a fleet, and keeps it one. It asks the
// hub for a client certificate with the credentials that a person gave the agent at the
// start (the bootstrap file), keeps key and certificate in a Secret, renews them, and
// shows the hub that the cluster lives: the Lease and the status of its ManagedCluster.
//
//	begin ──► bootstrapping: create ManagedCluster and CertificateSigningRequest,
//	 ▲        wait until the hub has approved and signed
//	 │              │ certificate
//	 │              ▼
//	 │        registered: wait until the hub accepts the cluster, then report its status,
//	 │        renew the Lease and, at four fifths of its life, the certificate
//	 │              │
//	 ╰──────────────╯ the broker does not take the certificate, and it has ended; or the hub
//	                  has no such cluster or does not take it, and there is another file
//
// A certificate that was good is kept until there is another one, and tried again: who refuses it may take it a
// minute later, when the bootstrap token has ended. That the local clock says that it has ended is no
// reason to do without it: the broker decides.
//
// The hub accepts a cluster by spec.hubAcceptsClient of its ManagedCluster, never by a condition.
//
// The decisions are made by [Core], which has no clock, goroutine or socket in it: it is
// told what happened, and says what to do. [Registration] drives it with sessions to the
// broker, a [Store] and a [Reader] of the managed cluster.
//
// The private key is made here, written into the Secret before the hub hears of its
// request, and sent nowhere. So a restart at any moment finds the key to what was asked:
//
//	t1 key and name of a request are in the Secret
//	t2 the request is published
//	t3 the agent is killed
//	t4 it starts again, publishes the same request, and hears that it exists,
//	   therefore the certificate that the hub issues fits its key
package registration
