package memlimit

import (
	"math"
	"os"
	"runtime"
	"testing"
	"testing/fstest"
)

// TestMemoryLimit checks that the lowest limit of all control groups of a process is used.
func TestMemoryLimit(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	for name, c := range map[string]struct {
		files fstest.MapFS
		want  int64
	}{
		"no control groups": {fstest.MapFS{}, math.MaxInt64},
		"in a container": {fstest.MapFS{
			"proc/self/cgroup": file("0::/\n"), "sys/fs/cgroup/memory.max": file("1073741824\n"),
		}, 1 << 30},
		"none that is bounded": {fstest.MapFS{
			"proc/self/cgroup": file("0::/system.slice/a.service\n"), "sys/fs/cgroup/system.slice/a.service/memory.max": file("max\n"),
		}, math.MaxInt64},
		"the slice is": {fstest.MapFS{
			"proc/self/cgroup": file("0::/system.slice/a.service\n"),
			"sys/fs/cgroup/system.slice/a.service/memory.max":    file("2048\n"),
			"sys/fs/cgroup/system.slice/memory.max":              file("1024\n"),
			"sys/fs/cgroup/system.slice/b.service/memory.max":    file("7\n"),
			"sys/fs/cgroup/system.slice/a.service/memory.higher": file("9\n"),
		}, 1024},
		"of another mount": {fstest.MapFS{
			"proc/self/cgroup": file("0::/../../kubepods/pod\n"), "sys/fs/cgroup/memory.max": file("4096\n"),
		}, 4096},
		"version 1": {fstest.MapFS{
			"proc/self/cgroup": file("5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n0::/\nbroken\n"),
			"sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes":  file("9223372036854771712\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes":           file("512\n"),
			"sys/fs/cgroup/cpu,cpuacct/docker/x/memory.limit":      file("1\n"),
			"sys/fs/cgroup/memory/docker/x/memory.usage_in_bytes":  file("2\n"),
			"sys/fs/cgroup/memory/docker/memory.soft_limit_in_byt": file("3\n"),
		}, 512},
		"version 1 without a limit": {fstest.MapFS{
			"proc/self/cgroup": file("4:memory:/docker/x\n0::/\n"),
			"sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": file("9223372036854771712\n"),
			"sys/fs/cgroup/memory/docker/memory.limit_in_bytes":   file("9223372036854710272\n"), // pages of 64 KiB
			"sys/fs/cgroup/memory/memory.limit_in_bytes":          file("9223372036854775807\n"),
		}, math.MaxInt64},
		"a very large limit": {fstest.MapFS{
			"proc/self/cgroup": file("4:memory:/\n"), "sys/fs/cgroup/memory/memory.limit_in_bytes": file("70368744177664\n"),
		}, 64 << 40},
	} {
		if got := MemoryLimit(c.files); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// TestMemoryLimit_Here checks that the limit of this process is plausible, or that there is none.
func TestMemoryLimit_Here(t *testing.T) {
	if got := MemoryLimit(os.DirFS("/")); got >= noLimit && got != math.MaxInt64 {
		t.Errorf("no limit is taken for one of %d bytes", got)
	}
}

// TestBurst_IsOver checks when memory is given back: once after each burst, for a small program as for a fleet.
func TestBurst_IsOver(t *testing.T) {
	type check struct {
		held, more uint64 // MiB; more is allocated since the check before
		want       bool
	}
	for name, c := range map[string]struct {
		start  uint64
		checks []check
	}{
		"a load":                  {30, []check{{40, 100, false}, {300, 500, false}, {400, 100, false}, {400, 2, true}}},
		"the start is in a burst": {30, []check{{200, 500, false}, {200, 2, true}}},
		"10,000 sessions at rest after they came":  {600, []check{{1200, 900, false}, {1200, 33, true}}},
		"the same, while the garbage grows":        {600, []check{{633, 33, false}, {732, 33, false}, {963, 33, false}, {996, 33, true}}},
		"a small program, a fifth more":            {40, []check{{48, 0, false}, {50, 0, false}, {51, 0, true}}},
		"a program that needs less than before":    {600, []check{{100, 0, false}, {120, 1, false}, {140, 1, true}}},
		"it would allocate that again in a minute": {100, []check{{200, 17, false}, {200, 9, false}, {200, 8, true}}},
	} {
		const mib = 1 << 20
		b, allocated := newBurst(memory{held: c.start * mib}), uint64(0)
		for i, check := range c.checks {
			allocated += check.more * mib
			if got := b.over(memory{check.held * mib, allocated}); got != check.want {
				t.Errorf("%s: check %d: %v", name, i, got)
			}
		}
		now := c.checks[len(c.checks)-1].held * mib
		b.rest(memory{now, allocated}) // the program needs all of it
		if b.over(memory{now + now/spareShare, allocated}) {
			t.Errorf("%s: it gives back memory that the program needs", name)
		}
		if !b.over(memory{now + now/spareShare + mib, allocated}) {
			t.Errorf("%s: it gives nothing back after another burst", name)
		}
	}
}

// TestGiveBack_AfterABurst checks that the measured memory grows with allocations, and that the system gets it
// back.
func TestGiveBack_AfterABurst(t *testing.T) {
	const bytes = 64 << 20
	before := memoryNow()
	all := make([]byte, 2*bytes)
	for i := 0; i < len(all); i += 4096 {
		all[i] = 1
	}
	during := memoryNow()
	runtime.KeepAlive(all)
	if during.held < before.held+bytes || during.allocated < before.allocated+2*bytes {
		t.Errorf("%+v became %+v", before, during)
	}
	b := burst{}
	b.giveBack()
	if after := memoryNow(); after.held > during.held-bytes || b.least > after.held+bytes {
		t.Errorf("%+v became %+v", during, after)
	}
}
