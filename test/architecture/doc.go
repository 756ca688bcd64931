// Package architecture holds the tests that keep the repository in the shape that
// ARCHITECTURE.md describes: which package may import which, which packages are
// pure, how long a file may be, that every package explains itself once, and
// that no test sleeps or is skipped. The rules are the tables at the top of
// each test file; every rule is also tried on a file that breaks it.
package architecture
