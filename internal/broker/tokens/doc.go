// Package tokens identifies clients by bearer tokens: of accounts of the hub, which the broker's configuration
// maps to a role and a name.
//
// A token of a service account is verified here, with the keys that the hub's source reports. On first use it
// is also reviewed by the hub, because its account may have been deleted since. A review is valid for a minute.
// While a client is connected by the token, the review is repeated each minute. If the hub cannot be asked,
// known tokens stay valid; new tokens and those of bootstrap accounts have to wait.
//
// A bootstrap token of kubeadm is opaque, so only the hub knows its account.
//
// Tokens are stored as hashes. The text is stored only while a connection depends on it. It is never part of an
// error or a log line.
package tokens
