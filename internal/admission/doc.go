// Package admission decides whether a hub takes a ManifestWork: the rules of
// Open Cluster Management's webhook, in its order and with its texts.
//
// It is pure. [Decode] reads what a kube-apiserver asks, [Rules.Check] says what
// can be said without asking anybody, and [Encode] writes the answer. Whether
// somebody may use an executor only the hub knows: Check returns the question as
// an [Executor], and package webhook puts it.
//
// What is admitted can be delivered: no rule of an agent about a work as a whole
// is stricter, see the fuzz target of this package.
package admission
