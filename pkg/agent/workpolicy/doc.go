// Package workpolicy says which objects of a cluster no work may have: those that agents live
// by, and those that the owner of the cluster denies to the works of a hub.
//
// What a work may not have is neither written nor read for it, nor deleted with it: a value of
// an agent's Secret in a status would be as bad as a deletion. The mark of a work that has it
// already is taken off.
//
// An agent knows its own namespace and service account. Agents of other hubs on the cluster are
// known by their names, by a label, and by the ConfigMap that each keeps in its namespace; see
// [Own]. What the owner of the cluster says is a [Policy]. A [Guard] asks both.
package workpolicy
