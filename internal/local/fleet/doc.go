// Package fleet runs Hawser as it is deployed, on one machine: a hub and managed
// clusters (test control planes), broker, hub-source and one agent per cluster,
// each a process of its own, over mTLS.
//
// The programs run exactly as deploy/ says: the kustomize bases are applied to
// the control planes, the arguments of the rendered Deployments are used with
// only mount paths replaced, and each program talks to Kubernetes with the
// token of its ServiceAccount. Where a pod would have an address of its own, a
// process gets an address of 127.0.0.0/8.
//
// The demo, the end-to-end tests and the benchmarks share this package.
package fleet
