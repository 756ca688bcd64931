// Package webhook is the HTTPS port on which a hub's kube-apiserver asks package
// admission about ManifestWorks. Every replica of hub-source serves it, also
// those that stand by: it has no state, and needs the hub only to ask who may
// use an executor.
//
// Bodies, requests at a time and their duration are bounded. No log line or
// metric holds what was sent.
package webhook
