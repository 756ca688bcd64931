package sim

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// budget is how long TestSeeds runs without SEEDS.
const budget = 25 * time.Second

// shownLines is how much of the end of a run is printed.
const shownLines = 300

// number reads a number from the environment, 0 if it is not set.
func number(t *testing.T, name string) uint64 {
	text := os.Getenv(name)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == 0 {
		t.Fatalf("%s=%q: give a positive number", name, text)
	}
	return n
}

// TestSeeds plays seeds from 1 on: SEEDS of them, or as many as fit in its time.
// With SEED it plays that one and shows all that happens.
func TestSeeds(t *testing.T) {
	if seed := number(t, "SEED"); seed != 0 {
		replay(t, seed)
		return
	}
	seeds, first := number(t, "SEEDS"), max(number(t, "FIRST"), 1)
	end := time.Now().Add(budget)
	var next, played atomic.Uint64
	next.Store(first - 1)
	var failed atomic.Bool
	var mu sync.Mutex // one report at a time
	t.Run("play", func(t *testing.T) {
		for range runtime.GOMAXPROCS(0) {
			t.Run("worker", func(t *testing.T) {
				t.Parallel()
				for !failed.Load() && (seeds != 0 || time.Now().Before(end)) {
					seed := next.Add(1)
					if seeds != 0 && seed >= first+seeds {
						return
					}
					list := script(seed)
					r := play(t, seed, list)
					played.Add(1)
					if r.broken != nil && !failed.Swap(true) {
						mu.Lock()
						defer mu.Unlock()
						announce(t, seed, list, r.broken)
					}
				}
			})
		}
	})
	t.Logf("%d seeds from %d on", played.Load(), first)
}

func announce(t *testing.T, seed uint64, list []op, broken *violation) {
	if os.Getenv("RAW") == "" {
		list = minimise(t, seed, list, broken.invariant)
	}
	r := play(t, seed, list)
	what := broken
	if r.broken != nil {
		what = r.broken
	}
	lines := r.lines[max(0, len(r.lines)-shownLines):]
	t.Errorf("seed %d breaks %s\n%d operations are enough:\n%s\nwhat happened at the end:\n%s\nSEED=%d go test -run TestSeeds ./test/sim replays the whole of it",
		seed, what, len(list), tell(list, r), strings.Join(lines, "\n"), seed)
}

func replay(t *testing.T, seed uint64) {
	list := script(seed)
	r := play(t, seed, list)
	if r.broken != nil {
		announce(t, seed, list, r.broken)
		return
	}
	t.Logf("seed %d holds:\n%s", seed, strings.Join(r.lines, "\n"))
}

// TestPlay_IsExact: a seed does the same each time.
func TestPlay_IsExact(t *testing.T) {
	for seed := uint64(1); seed <= 20; seed++ {
		a, b := play(t, seed, script(seed)), play(t, seed, script(seed))
		if !slices.Equal(a.lines, b.lines) {
			t.Fatalf("seed %d differs from itself (-first +second):\n%s", seed, cmp.Diff(a.lines, b.lines))
		}
	}
}

// TestScript_IsWhole: every operation has a place in the scripts of a few seeds
// and does something there.
func TestScript_IsWhole(t *testing.T) {
	did := map[string]bool{}
	for seed := uint64(1); seed <= 60; seed++ {
		list := script(seed)
		r := play(t, seed, list)
		for i, what := range r.did {
			did[list[i].name] = did[list[i].name] || what != ""
		}
	}
	for _, o := range operations {
		if !did[o.name] {
			t.Errorf("operation %q never did anything", o.name)
		}
	}
	fmt.Fprintln(t.Output(), len(did), "operations")
}
