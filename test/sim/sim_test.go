package sim

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"
)

// The environment variables of TestSeeds.
const (
	envSeed  = "SEED"  // play this seed and print all its events
	envSeeds = "SEEDS" // play that many seeds
	envFirst = "FIRST" // begin with this seed, not with 1
	envTime  = "TIME"  // play as many seeds as fit in this duration
	envMore  = "MORE"  // operations that come ten times as often, separated by commas
	envWant  = "WANT"  // only this invariant counts, and its violation is shown without minimising
)

// The defaults of TestSeeds. It plays as many seeds as fit in a time, but at least a number that every machine
// plays. The race detector finds its races in the first worlds, so fewer seeds are enough there.
const (
	defaultTime = 45 * time.Second
	leastSeeds  = 2000
	raceSeeds   = 100
)

// shownLines is the number of lines that are printed from the end of a run.
const shownLines = 300

// TestMain runs the garbage collector less often: a world is small, and is freed within milliseconds.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	klog.LogToStderr(false) // logs of clients about ended watches
	klog.SetOutput(io.Discard)
	os.Exit(m.Run())
}

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

// search plays seeds until one fails, or all are played.
type search struct {
	first uint64
	seeds uint64    // the least number of seeds
	end   time.Time // more seeds until then; zero: no more
	want  string

	next, played atomic.Uint64
	failed       atomic.Bool
}

// newSearch returns the search that the environment requests. The default is at least that many seeds, and that
// duration.
func newSearch(t *testing.T, least uint64, length time.Duration) *search {
	s := &search{first: max(number(t, envFirst), 1), seeds: number(t, envSeeds), want: os.Getenv(envWant)}
	s.next.Store(s.first - 1)
	switch text := os.Getenv(envTime); {
	case text != "":
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			t.Fatalf("%s=%q: give a duration such as 1m", envTime, text)
		}
		s.end = time.Now().Add(d)
	case s.seeds > 0:
	case raceDetector:
		s.seeds = min(raceSeeds, least/6) // worlds of which there are fewer take longer
	default:
		s.seeds, s.end = least, time.Now().Add(length)
	}
	return s
}

// take returns the next seed. It returns false if there is none left.
func (s *search) take() (uint64, bool) {
	if s.failed.Load() {
		return 0, false
	}
	seed := s.next.Add(1)
	return seed, seed-s.first < s.seeds || time.Now().Before(s.end)
}

// TestSeeds plays seeds from 1 on. The environment selects the seeds.
func TestSeeds(t *testing.T) { playSeeds(t, brokered, leastSeeds, defaultTime) }

// playSeeds plays the seeds of a shape; see newSearch.
func playSeeds(t *testing.T, k *shape, least uint64, length time.Duration) {
	t.Helper()
	if seed := number(t, envSeed); seed != 0 {
		replay(t, k, seed)
		return
	}
	s, began := newSearch(t, least, length), time.Now()
	s.playAll(t, k, runtime.GOMAXPROCS(0))
	s.print(t, began)
}

// playAll plays the seeds.
func (s *search) playAll(t *testing.T, k *shape, workers int) {
	t.Run("play", func(t *testing.T) {
		for range workers {
			t.Run("worker", func(t *testing.T) {
				t.Parallel()
				for seed, more := s.take(); more; seed, more = s.take() {
					list := k.script(seed)
					r := k.play(t, seed, list)
					s.played.Add(1)
					switch {
					case r.broken == nil:
					case s.want != "" && s.want != r.broken.invariant:
						t.Logf("seed %d breaks %s", seed, r.broken.invariant)
					case !s.failed.Swap(true):
						t.Logf("seed %d: %s", seed, r.broken) // another play of the seed may differ
						if s.want == "" {
							list = k.minimise(t, seed, list, r.broken.invariant)
						}
						announce(t, k, seed, list)
					}
				}
			})
		}
	})
}

// print prints the range of the played seeds.
func (s *search) print(t *testing.T, began time.Time) {
	n := s.played.Load()
	t.Logf("%d seeds from %d on, %.0f each second", n, s.first, float64(n)/time.Since(began).Seconds())
	t.Attr("seeds", fmt.Sprintf("from %d to %d", s.first, s.first+max(n, 1)-1))
}

func announce(t *testing.T, k *shape, seed uint64, list []op) {
	r := k.play(t, seed, list)
	lines := r.lines[max(0, len(r.lines)-shownLines):]
	t.Errorf("seed %d breaks %s\nthese %d operations are enough:\n%s\nthe end of the run:\n%s\nto replay all of it: SEED=%d go test -v -run %s ./test/sim",
		seed, r.broken, len(list), printList(list, r), strings.Join(lines, "\n"), seed, strings.Split(t.Name(), "/")[0])
}

func replay(t *testing.T, k *shape, seed uint64) {
	list := k.script(seed)
	r := k.play(t, seed, list)
	t.Logf("seed %d:\n%s", seed, strings.Join(r.lines, "\n"))
	if r.broken != nil {
		announce(t, k, seed, k.minimise(t, seed, list, r.broken.invariant))
	}
}

// TestPlay_IsExact checks that a seed does the same each time. About one seed in thousands differs: the runtime
// draws the order of timers that end at the same moment. Over MQTT 3 % differ: there the real listener chooses
// between a delivery and other ready work.
func TestPlay_IsExact(t *testing.T) {
	var differ []string
	for _, k := range []*shape{brokered, bused} {
		for seed := uint64(1); seed <= 20; seed++ {
			a, b := k.play(t, seed, k.script(seed)), k.play(t, seed, k.script(seed))
			if !slices.Equal(a.lines, b.lines) {
				differ = append(differ, fmt.Sprintf("seed %d differs from itself (-first +second):\n%s", seed, cmp.Diff(a.lines, b.lines)))
			}
		}
	}
	switch len(differ) {
	case 0:
	case 1:
		t.Log(differ[0])
	default:
		t.Error(strings.Join(differ, "\n"))
	}
}

// TestScript_IsWhole: every operation is in a script of the first seeds and has an effect there.
func TestScript_IsWhole(t *testing.T) {
	for _, k := range []*shape{brokered, bused, joined} {
		idle := map[string]bool{}
		for _, o := range k.operations {
			idle[o.name] = true
		}
		seed := uint64(0)
		for ; len(idle) > 0 && seed < raceSeeds*5; seed++ {
			list := k.script(seed + 1)
			r := k.play(t, seed+1, list)
			for i, what := range r.did {
				if what != "" {
					delete(idle, list[i].name)
				}
			}
		}
		for name := range idle {
			t.Errorf("operation %q never did anything", name)
		}
		fmt.Fprintln(t.Output(), len(k.operations), "operations in", seed, "seeds")
	}
}
