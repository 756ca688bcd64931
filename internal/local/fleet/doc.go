// Package fleet runs a deployed Hawser on one machine: a hub and managed clusters (test control planes),
// broker, hub-source and one agent per cluster. Each is a process of its own, and they use mTLS.
//
// The programs run exactly as deploy/ specifies. The kustomize bases are applied to the control planes. The
// arguments of the rendered Deployments are used; only mount paths are replaced. Each program uses the token of
// its ServiceAccount for Kubernetes. Instead of a pod address, a process has an address of 127.0.0.0/8.
//
// The demo, the end-to-end tests and the benchmarks share this package.
package fleet
