// Package workpolicy decides which objects of a cluster no work may have. These are objects that an agent
// needs, and objects that the owner of the cluster denies to the works of a hub.
//
// Such an object is neither written nor read for a work, nor deleted with it. A value of an agent's Secret in a
// status would be as bad as a deletion. The owner reference of a work that already has it is removed.
//
// An agent knows its own namespace and service account. It knows agents of other hubs by their names, by a
// label, and by the ConfigMap that each has in its namespace; see [Agent]. A [Policy] has the rules of the
// cluster's owner. A [Guard] checks both.
package workpolicy
