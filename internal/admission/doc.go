// Package admission decides whether a hub admits a ManifestWork. It has the rules of Open Cluster Management's
// webhook, in the same order and with the same texts.
//
// It is pure. [Decode] reads the request of a kube-apiserver, [Rules.Check] applies the rules that need no
// other request, and [Encode] writes the answer. Only the hub knows whether a user may use an executor. Check
// returns that question as an [Executor], and package webhook sends it.
//
// An admitted work can be delivered: no rule of an agent about a work as a whole is stricter. See the fuzz
// target of this package.
package admission
