// Package listener is what the fronts of the broker share that serve one port: who is let
// in, what it may use there, and when its connection ends.
//
// A [Port] counts a peer from the moment its connection is accepted, at the least cost there
// is, and knows who it is after the handshake: a [Connection]. The fronts in the packages
// below speak a protocol on it. They ask the connection before a call begins, tell it what
// comes and what goes, and give back what a call used when it ends.
package listener
