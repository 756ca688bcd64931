// Package tokens says who shows a bearer token: an account of the hub, which the broker's
// configuration maps to a role and a name.
//
// A token of a service account is verified here, with the keys that the hub's source hands over,
// and is put to the hub when it is seen for the first time: its account may have been deleted since
// it was signed. What the hub said counts for a minute. As long as somebody is connected by it, the
// hub is asked again each minute. A hub that cannot be asked changes nothing for who is known
// already; a token that was not seen before, and one of a bootstrap account, has to wait for it.
//
// A bootstrap token of kubeadm says nothing of itself, so that the hub alone knows whose it is.
//
// Tokens are kept by their hashes, and as they are only while a connection rests on them. They
// are never part of an error or of a log.
package tokens
