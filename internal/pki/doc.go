// Package pki makes the certificates that a first installation, the demo and
// the tests need: one certificate authority and, signed by it, serving
// certificates for broker and webhook and client certificates for everybody else.
//
// It is meant for development and for trying Hawser out. A fleet that already
// has a certificate authority uses that one: all Hawser asks for is the subject
// that [Subject] describes.
//
// [Authority] works in memory only; [Dir] keeps an authority and what it issued
// as PEM files in one directory. Neither reads a clock: the caller says from
// when to when a certificate is valid. Keys are ECDSA on P-256.
package pki
