// Package executor finds out whether the service account in whose name a work is
// applied may do what the work asks for.
//
// The agent writes every object itself, with its own rights. spec.executor of a
// work names a service account of the managed cluster that must have the rights
// too: a [Checker] asks the cluster by SubjectAccessReviews. Since servers judge by
// more than the verb, as for roles, a [Writer] has the cluster rehearse each write in
// the name of the account. What is not allowed is a [*DeniedError].
//
// The package remembers nothing. When an answer still counts is the agent's to
// decide.
package executor
