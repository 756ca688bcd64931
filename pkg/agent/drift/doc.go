// Package drift notices when objects on the cluster are no longer as the agent
// left them.
//
// A [Watcher] keeps one watch per kind and namespace in which something is
// tracked, of metadata only, and remembers of each tracked object nothing but a
// [Signature]; all other objects are dropped as they arrive. Owners (works) say
// which objects they track and in which state they expect them; an object that
// turns out to be in another state wakes its owners. Where the agent may not
// watch, the Watcher says so, and the owner looks for itself from time to time.
package drift
