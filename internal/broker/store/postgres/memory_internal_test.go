package postgres

import "testing"

// TestMemory_Expects: the row that a replica writes is no news, so its notification causes no read of the log. It often
// arrives before the answer to the commit.
func TestMemory_Expects(t *testing.T) {
	m := newMemory(memIndex{position: position{number: 4, token: 1}})
	m.writes(position{number: 5, token: 2})
	for number, want := range map[uint64]bool{4: true, 5: true, 6: false} {
		if got := m.expects(number); got != want {
			t.Errorf("row %d: %t", number, got)
		}
	}
}
