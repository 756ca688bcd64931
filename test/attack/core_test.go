//go:build linux

package attack

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit in which the kernel counts time of processors for programs.
const tick = 10 * time.Millisecond

// maxOthers is the share of core 0 that other programs may use while a long time still counts as a result. If
// others use more, fleet and broker wait for each other.
const maxOthers = 0.1

// others returns the share of core 0 that neither broker nor fleet had while f ran, and that
// was not idle.
func (s *stage) others(f func()) float64 {
	s.t.Helper()
	began, busy, ours := time.Now(), s.busy(), s.ours()
	f()
	return float64(s.busy()-busy-(s.ours()-ours)) / float64(time.Since(began))
}

// busy is how long core 0 has not been idle, what the machine below it took included.
func (s *stage) busy() time.Duration {
	s.t.Helper()
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		// user nice system idle iowait irq softirq steal
		if f := strings.Fields(line); f[0] == "cpu0" && len(f) > 8 {
			return s.ticks(f[1], f[2], f[3], f[6], f[7], f[8])
		}
	}
	s.t.Fatal("/proc/stat has no cpu0")
	return 0
}

// ours is how long broker and fleet have had a core.
func (s *stage) ours() (sum time.Duration) {
	s.t.Helper()
	for _, pid := range []int{s.broker.PID(), s.fleet.process.PID()} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // it is gone, which alive says
		}
		// After the name, in which anything may be: state is the third field, utime and stime the 14th and 15th.
		if f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:])); len(f) > 12 {
			sum += s.ticks(f[11], f[12])
		}
	}
	return sum
}

func (s *stage) ticks(counts ...string) (sum time.Duration) {
	s.t.Helper()
	for _, c := range counts {
		n, err := strconv.ParseInt(c, 10, 64)
		if err != nil {
			s.t.Fatal(err)
		}
		sum += time.Duration(n) * tick
	}
	return sum
}
