package run

import (
	"math"
	"runtime"
	"testing"
	"testing/fstest"
)

// TestMemoryLimit: the lowest limit counts of all control groups that a process is in.
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
	} {
		if got := MemoryLimit(c.files); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// TestBurst_IsOverWhenTheProgramIsAtRest: memory is given back once after each burst.
func TestBurst_IsOverWhenTheProgramIsAtRest(t *testing.T) {
	const mib = 1 << 20
	b := newBurst(memory{held: 30 * mib})
	allocated := uint64(0)
	for i, c := range []struct {
		held, more uint64
		want       bool
	}{
		{40 * mib, 1 * mib, false}, {300 * mib, 500 * mib, false}, {400 * mib, 100 * mib, false}, // it goes on
		{400 * mib, 2 * mib, true},
	} {
		allocated += c.more
		if got := b.over(memory{c.held, allocated}); got != c.want {
			t.Errorf("look %d: %v", i, got)
		}
	}
	b.rest(memory{120 * mib, allocated}) // it needs more than before
	if b.over(memory{130 * mib, allocated + mib}) {
		t.Error("it gives back what it needs")
	}
	if !b.over(memory{200 * mib, allocated + 2*mib}) {
		t.Error("it gives nothing back after another burst")
	}
}

// TestGiveBack_AfterABurst: what is measured grows with what is allocated, and the system
// has it again afterwards.
func TestGiveBack_AfterABurst(t *testing.T) {
	before := memoryNow()
	all := make([]byte, 2*burstBytes)
	for i := 0; i < len(all); i += 4096 {
		all[i] = 1
	}
	during := memoryNow()
	runtime.KeepAlive(all)
	if during.held < before.held+burstBytes || during.allocated < before.allocated+2*burstBytes {
		t.Errorf("%+v became %+v", before, during)
	}
	b := burst{}
	b.giveBack()
	if after := memoryNow(); after.held > during.held-burstBytes || b.least > after.held+burstBytes {
		t.Errorf("%+v became %+v", during, after)
	}
}

// TestBurst_AtTheStart: what a program held when it started is known, also where the first look
// comes in the middle of a burst.
func TestBurst_AtTheStart(t *testing.T) {
	const mib = 1 << 20
	b := newBurst(memory{held: 30 * mib})
	if b.over(memory{held: 200 * mib, allocated: 500 * mib}) {
		t.Error("it gives memory back in the middle of a burst")
	}
	if !b.over(memory{held: 200 * mib, allocated: 502 * mib}) {
		t.Error("it gives nothing back after a burst in which it started")
	}
}
