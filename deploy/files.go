// Package deploy is what Hawser is installed from: the very files that stand
// beside this one, for who installs without a checkout.
package deploy

import "embed"

// Files holds the definitions and the kustomize bases.
//
//go:embed crds images namespace broker hub-source agent agent-registration broker-registration hub-source-registration hub-source-policy
var Files embed.FS
