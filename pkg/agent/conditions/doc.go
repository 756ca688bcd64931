// Package conditions builds the status of a ManifestWork from the results of an agent: one entry per manifest,
// and the summary of the work.
//
// It is pure. [Next] takes the previous status and the results of one reconciliation. Everything that clients
// of the hub rely on is decided here only: types, reasons, messages, observed generations, the order of the
// lists, and transition times.
package conditions
