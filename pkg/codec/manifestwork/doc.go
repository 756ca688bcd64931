// Package manifestwork converts ManifestWorks to CloudEvents and back. A spec event carries a work from its
// source to the agent of its cluster. A status event carries the agent's report back.
//
// Sources call [EncodeSpec] and [DecodeStatus], agents [DecodeSpec] and [EncodeStatus]. The package is pure:
// time and ids are parameters. The broker never imports it; the broker's view of an event is in package codec.
package manifestwork
