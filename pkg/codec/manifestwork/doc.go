// Package manifestwork turns ManifestWorks into CloudEvents and back: a spec
// event carries a work from its source to the agent of its cluster, a status
// event carries the agent's report back.
//
// Sources call [EncodeSpec] and [DecodeStatus], agents [DecodeSpec] and
// [EncodeStatus]. The package is pure; time and ids are parameters. The broker
// never imports it: what a broker needs from an event is in package codec.
package manifestwork
