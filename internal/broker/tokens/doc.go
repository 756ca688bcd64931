// Package tokens identifies clients by bearer tokens of hub accounts. The broker's configuration maps an
// account to a role and a name.
//
// The broker verifies a token of a service account with the keys that the source of the hub reports. On first
// use the hub also reviews the token, because its account may have been deleted. A review is valid for a
// minute. While a connection uses the token, the review is repeated each minute. If the hub cannot be asked,
// known tokens stay valid; new tokens and those of bootstrap accounts have to wait.
//
// A bootstrap token of kubeadm is opaque, so only the hub knows its account.
//
// Tokens are stored as hashes. The text is stored only while a connection depends on it. It is never part of an
// error or a log line.
package tokens
