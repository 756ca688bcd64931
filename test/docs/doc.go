// Package docs holds the tests of the documentation: shell blocks marked "sh test" run, and links between the
// pages lead to existing targets. `make docs` builds the programs first and puts them into the PATH. Blocks
// marked "sh test demo" or "sh test join" need a running fleet; test/e2e runs them.
package docs
