// Package architecture holds the tests that keep the repository as ARCHITECTURE.md describes it. They check
// which package may import which, and which packages are pure. They limit the length of files, and forbid
// sleeping and skipped tests. Each package needs one package comment and a link in docs/code-map.md. The rules
// are the tables at the top of each test file. Each rule is also tried on a file that breaks it.
package architecture
