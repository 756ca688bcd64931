// Package consistency checks Hawser's promises on real clusters. It writes works on a hub, each with an object
// that carries a counter. It records its requests, and watches the objects on the managed clusters all the
// time.
//
// A [History] holds both sides and judges every event. A counter never falls, no cluster has a counter that was
// never written, and no object disappears that was not deleted on the hub. Every complaint comes with the
// history of its object. [Works] is the hub's side, [Watch] the clusters'. [Works.Converged] compares hub and
// clusters when everything should have arrived. All of it survives restarts of the kube-apiservers.
//
// The end-to-end tests and the soak test share this package.
package consistency
