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
		type taker struct {
			id   identity.Identity
			part string
		}
		taken := map[taker][]int{}
		for range rapid.IntRange(0, 100).Draw(t, "steps") {
			by := taker{
				id:   identity.Identity{Role: identity.Source, Name: rapid.StringMatching(`[a-e]`).Draw(t, "party")},
				part: rapid.StringMatching(`[xy]?`).Draw(t, "part"),
			}
			if had := taken[by]; len(had) > 0 && rapid.Bool().Draw(t, "give") {
				b.FreePart(by.id, by.part, had[0])
				taken[by] = had[1:]
			} else if n := rapid.IntRange(0, 600).Draw(t, "bytes"); b.ReservePart(by.id, by.part, n) {
				taken[by] = append(taken[by], n)
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
		for by, l := range taken {
			for _, n := range l {
				b.FreePart(by.id, by.part, n)
			}
		}
		if b.Used() != 0 || len(b.reserved) != 0 {
			t.Fatalf("%d bytes of %d parties in use when all is given back", b.Used(), len(b.reserved))
		}
	})
}
