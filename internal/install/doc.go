// Package install installs Hawser on a hub and on managed clusters, from the manifests of deploy/. It plans the
// objects, makes missing certificates, applies all and waits. Existing objects are kept: a second run changes
// nothing, and a run with a newer program is an upgrade.
package install
