//go:build linux

package attack

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of processor times in /proc.
const tick = 10 * time.Millisecond

// maxOthers is the share of core 0 that other programs may use while a long time still counts as a result. If
// others use more, fleet and broker wait for each other.
const maxOthers = 0.1

// others returns the share of core 0 that other programs used while f ran: neither the broker nor the fleet.
func (s *stage) others(f func()) float64 {
	s.t.Helper()
	began, busy, ours := time.Now(), s.busy(), s.ours()
	f()
	return float64(s.busy()-busy-(s.ours()-ours)) / float64(time.Since(began))
}

// busy returns the time in which core 0 was not idle, including the time that a hypervisor took.
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

// ours returns the processor time of broker and fleet.
func (s *stage) ours() (sum time.Duration) {
	s.t.Helper()
	for _, pid := range []int{s.broker.PID(), s.fleet.process.PID()} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // the process has ended; alive reports it
		}
		// The name may contain any byte. After it, state is the third field, utime and stime are the 14th and
		// 15th.
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
