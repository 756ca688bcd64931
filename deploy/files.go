// Package deploy embeds the installation files of this directory, for installations without a checkout.
package deploy

import "embed"

// Files holds the definitions and the kustomize bases.
//
//go:embed crds images namespace broker hub-source agent agent-registration broker-registration hub-source-registration hub-source-policy postgres
var Files embed.FS
