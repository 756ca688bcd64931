// Package docs holds the tests that keep the documentation true: the shell
// blocks marked "sh test" run, and the links between the pages lead somewhere.
// `make docs` builds the programs first and puts them into the PATH. Blocks
// marked "sh test demo" or "sh test join" need a running fleet; test/e2e runs them.
package docs
