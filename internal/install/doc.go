// Package install puts Hawser on a hub and on managed clusters, from the very
// manifests of deploy/: it says what is to be there, makes the certificates that
// are missing, applies all of it and waits. What is there already is kept, so that
// a second run changes nothing, and one with a newer program is an upgrade.
package install
