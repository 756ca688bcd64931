package bytebudget

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/identity"
)

// TestBudget_DistinguishesPartFromWhole checks that a rejection shows whether other parts would be rejected,
// too.
func TestBudget_DistinguishesPartFromWhole(t *testing.T) {
	b := NewBudget(1000)
	id := identity.Identity{Role: identity.Source, Name: "a"}
	for n, c := range []struct {
		part       string
		bytes      int
		ok, others bool
	}{
		{"one", 251, false, false}, // no part of the client could reserve this many
		{"one", 125, true, true},
		{"one", 126, false, true},
		{"two", 125, true, true},
		{"two", 100, false, true},
		{"two", 140, false, false},
	} {
		if ok, others := b.ReservePart(id, c.part, c.bytes); ok != c.ok || others != c.others {
			t.Errorf("%d: %d bytes for %s: %t, for others %t", n, c.bytes, c.part, ok, others)
		}
	}
}

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
				id:   identity.Identity{Role: identity.Source, Name: rapid.StringMatching(`[a-e]`).Draw(t, "client")},
				part: rapid.StringMatching(`[xy]?`).Draw(t, "part"),
			}
			if had := taken[by]; len(had) > 0 && rapid.Bool().Draw(t, "give") {
				b.FreePart(by.id, by.part, had[0])
				taken[by] = had[1:]
			} else {
				n := rapid.IntRange(0, 600).Draw(t, "bytes")
				if ok, _ := b.ReservePart(by.id, by.part, n); ok {
					taken[by] = append(taken[by], n)
				}
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
			t.Fatalf("%d bytes of %d clients in use after all is freed", b.Used(), len(b.reserved))
		}
	})
}
