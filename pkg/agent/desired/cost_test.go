package desired_test

import (
	"fmt"
	"testing"

	"github.com/hawser-io/hawser/internal/testkit/complexity"
	"github.com/hawser-io/hawser/pkg/agent/desired"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// TestSet_CostOfASpec does not depend on the number of works.
func TestSet_CostOfASpec(t *testing.T) {
	complexity.Linear(t, func(n int) func() {
		var specs []*manifestwork.Spec
		for version := range int64(2) {
			for i := range n {
				specs = append(specs, spec{id: fmt.Sprint("id", i), name: fmt.Sprint("work", i), version: version + 1, revision: uint64(len(specs) + 1)}.received())
			}
		}
		return func() {
			s := desired.New()
			s.Subscribed(true)
			for _, in := range specs {
				if d := s.Accept(in, ""); d.Outcome != desired.Accepted {
					t.Errorf("%s: %v", in.ResourceID, d.Outcome)
				}
			}
			if l := s.Versions(); len(l) != n {
				t.Errorf("%d of %d", len(l), n)
			}
		}
	})
}
