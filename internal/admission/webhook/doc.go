// Package webhook is the HTTPS port at which a hub's kube-apiserver sends ManifestWorks to package admission.
// Every replica of hub-source serves it, also those that do not lead. It has no state, and needs the hub only
// to check the right to use an executor.
//
// The size of bodies, the number of concurrent requests and their duration are limited. No log line or metric
// contains request data.
package webhook
