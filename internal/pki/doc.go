// Package pki makes the certificates for a first installation, the demo and the tests. It has one CA that signs
// serving certificates for broker and webhook, and client certificates for all others.
//
// It is meant for development and for trying Hawser out. A fleet with its own CA uses that one: Hawser only
// requires the subject that [Subject] describes.
//
// [Authority] works in memory only. [Dir] stores a CA and its certificates as PEM files in one directory.
// Neither reads a clock: the caller passes the validity of a certificate. Keys are ECDSA on P-256.
package pki
