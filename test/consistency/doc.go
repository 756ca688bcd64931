// Package consistency proves with real clusters what Hawser promises: it writes works
// on a hub, each with an object that carries a counter, remembers what it asked
// for, and watches the objects on the managed clusters all the while.
//
// A [History] holds both sides and judges every event: a counter never falls, no
// cluster has a counter that was never written, and nothing goes that was not
// deleted on the hub. Every complaint comes with the history of its object.
// [Works] is the hub's side, [Watch] the clusters'; [Works.Converged] compares hub
// and clusters when everything should have arrived. All of it lives through
// restarts of the kube-apiservers.
//
// The end-to-end tests and the soak test share this package.
package consistency
