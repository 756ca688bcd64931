// Package storetest holds what every engine below package store must pass: a
// suite of behaviours ([Run]), a comparison with a reference that searches
// lists ([Model]) under random operations, and the invariants of the store.
// It is imported by tests only.
package storetest
