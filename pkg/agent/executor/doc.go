// Package executor checks whether the executor of a work, a service account, may do what the work requests.
//
// The agent writes every object itself, with its own rights. spec.executor of a work names a service account of
// the managed cluster that must also have the rights. A [Checker] checks them with SubjectAccessReviews. For
// roles and similar kinds servers check more than the verb. Therefore a [Writer] also dry-runs each write as
// the account. A denial is a [*DeniedError].
//
// The package stores nothing. The agent decides how long an answer is valid.
package executor
