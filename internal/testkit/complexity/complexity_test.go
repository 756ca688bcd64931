package complexity

import (
	"slices"
	"strings"
	"testing"
)

// record is a test that records failures instead of failing.
type record struct {
	testing.TB
	failures []string
}

func (r *record) Helper() {}

func (r *record) Errorf(format string, _ ...any) { r.failures = append(r.failures, format) }

func numbers(n int) (list []int) {
	for i := range n {
		list = append(list, i)
	}
	return list
}

func TestLinear_DistinguishesLinearFromQuadratic(t *testing.T) {
	Linear(t, func(n int) func() {
		list := numbers(n)
		return func() {
			seen := map[int]bool{}
			for _, i := range list {
				seen[i] = true
			}
			if len(seen) != n {
				t.Errorf("%d of %d", len(seen), n)
			}
		}
	})
	r := &record{TB: t}
	Linear(r, func(n int) func() {
		list := numbers(n)
		return func() {
			for _, i := range list {
				if slices.Index(list, i) != i {
					t.Error("not found")
				}
			}
		}
	})
	if raceDetector {
		return // nothing was measured
	}
	if len(r.failures) != 1 || !strings.Contains(r.failures[0], "times as long") {
		t.Errorf("a search of the whole list for each of its items: %q", r.failures)
	}
}
