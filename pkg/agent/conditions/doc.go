// Package conditions builds the status of a ManifestWork from what an agent
// did and saw: one entry per manifest, and the summary for the work.
//
// It is pure. [Next] takes the previous status and the outcome of one
// reconcile; everything that clients of the hub rely on (types, reasons,
// messages, which generation a condition observed, the order of the lists, when
// a transition time moves) is decided here and nowhere else.
package conditions
