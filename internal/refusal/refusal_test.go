package refusal

import (
	"errors"
	"fmt"
	"testing"
)

func TestOf(t *testing.T) {
	for text, want := range map[string]Refusal{
		`Internal error occurred: failed calling webhook "all.example.com": failed to call webhook: Post "https://none.default.svc:443/?timeout=10s": service "none" not found`: {Webhook: "all.example.com"},
		`admission webhook "validate.kyverno.svc-fail" denied the request: policy 'a' with binding 'b' denied request: no`:                                                      {Webhook: "validate.kyverno.svc-fail"},
		`admission webhook "x.example.com" denied the request without explanation`:                                                                                              {Webhook: "x.example.com"},
		`leases.coordination.k8s.io "a" is forbidden: ValidatingAdmissionPolicy 'deny' with binding 'deny-all' denied request: failed expression: false`:                        {Policy: "deny"},
		`leases.coordination.k8s.io "a" is forbidden: ValidatingAdmissionPolicy 'deny' denied request: failed to configure policy`:                                              {Policy: "deny"},
		`leases.coordination.k8s.io "a" is forbidden: policy 'm' with binding 'b' denied request: no such key: x`:                                                               {Policy: "m"},
		`admission webhook "old.example.com" does not support dry run`:                                                                                                          {},
		`secrets "a" is forbidden: exceeded quota: none`:                                                                                                                        {},
		`dial tcp 127.0.0.1:6443: connect: connection refused`:                                                                                                                  {},
	} {
		got, ok := Of(fmt.Errorf("write: %w", errors.New(text)))
		if got != want || ok != (want != Refusal{}) {
			t.Errorf("%s: got %+v, %t", text, got, ok)
		}
	}
	if _, ok := Of(nil); ok {
		t.Error("no error is a refusal")
	}
}
