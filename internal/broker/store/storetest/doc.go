// Package storetest is the test suite for engines below package store. [Run] checks behaviours. [Model] is a
// slow reference implementation. Random operations compare each engine with it. The package also checks the
// invariants of the store. Only tests import it.
package storetest
