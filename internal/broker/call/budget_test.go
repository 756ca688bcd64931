package call

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/identity"
)

func TestBudget_NeverMoreThanThereIs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const whole = 1000
		b := NewBudget(whole)
		taken := map[identity.Identity][]int{}
		for range rapid.IntRange(0, 100).Draw(t, "steps") {
			id := identity.Identity{Role: identity.Source, Name: rapid.StringMatching(`[a-e]`).Draw(t, "party")}
			if had := taken[id]; len(had) > 0 && rapid.Bool().Draw(t, "give") {
				b.Free(id, had[0])
				taken[id] = had[1:]
			} else if n := rapid.IntRange(1, 600).Draw(t, "bytes"); b.Reserve(id, n) {
				taken[id] = append(taken[id], n)
			}
			sum := 0
			for _, l := range taken {
				for _, n := range l {
					sum += n
				}
			}
			if sum > whole || b.Used() != sum {
				t.Fatalf("%d bytes taken, %d in use of %d", sum, b.Used(), whole)
			}
		}
		for id, l := range taken {
			for _, n := range l {
				b.Free(id, n)
			}
		}
		if b.Used() != 0 || len(b.reserved) != 0 {
			t.Fatalf("%d bytes of %d parties in use when all is given back", b.Used(), len(b.reserved))
		}
	})
}
