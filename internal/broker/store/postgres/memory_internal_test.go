package postgres

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestMemory_Gets: a notification of the row that this replica writes often arrives before the answer to the commit, and is
// then no reason to read the log. If the answer does not come, it is one.
func TestMemory_Gets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		own := position{number: 5, token: 2}
		m := newMemory(memIndex{position: position{number: 4, token: 1}})
		check := func(number uint64, want bool, took time.Duration) {
			t.Helper()
			if got := m.gets(t.Context(), number); got != want || time.Since(began) != took {
				t.Errorf("row %d: %t after %s", number, got, time.Since(began))
			}
		}
		m.writes(own)
		check(4, true, 0)
		check(6, false, 0)
		check(5, false, answerWithin)
		time.AfterFunc(answerWithin/2, func() { m.applyNext(own, 9, &entries{}) })
		check(5, true, answerWithin*3/2)
	})
}
