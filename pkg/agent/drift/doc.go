// Package drift notices when objects on the cluster are no longer as the agent
// left them.
//
// A [Watcher] watches metadata only, one kind in one namespace at a time or, of a
// kind that is tracked in many namespaces, all namespaces together. It remembers
// of each tracked object nothing but its [ObservedObject]; all other objects are dropped
// as they arrive. Owners (works) say which objects they track and in which state
// they expect them; an object that turns out to be in another state wakes its
// owners. The number of watches is bounded. What the agent may not watch, or what
// is beyond that bound, the Watcher names, and the owners look for themselves
// from time to time.
package drift
