// The definitions of cert-manager, which the test installs: no code of it is built.
module github.com/hawser-io/hawser/test/e2e/install/testdata/cert-manager

go 1.26.0

require github.com/cert-manager/cert-manager v1.21.2
