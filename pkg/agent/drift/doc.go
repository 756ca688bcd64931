// Package drift detects when objects on the cluster differ from the state in which the agent left them.
//
// A [Watcher] watches metadata only, either one kind in one namespace, or, for a kind that is tracked in many
// namespaces, all namespaces together. Of each tracked object it stores only its [ObservedObject]; all other
// objects are dropped on arrival. Owners (works) track objects with the state that they expect. An object in
// another state wakes its owners. The number of watches is bounded. The Watcher reports the objects beyond the
// bound, or without the right to watch; their owners read them periodically.
package drift
