package memlimit

import (
	"context"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"
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

// TestBurst_IsOverWhenTheProgramIsAtRest checks that memory is given back once after each burst.
func TestBurst_IsOverWhenTheProgramIsAtRest(t *testing.T) {
	const mib = 1 << 20
	b := newBurst(memory{held: 30 * mib})
	allocated := uint64(0)
	for i, c := range []struct {
		held, more uint64
		want       bool
	}{
		{40 * mib, 1 * mib, false}, {300 * mib, 500 * mib, false}, {400 * mib, 100 * mib, false}, // the burst continues
		{400 * mib, 2 * mib, true},
	} {
		allocated += c.more
		if got := b.over(memory{c.held, allocated}); got != c.want {
			t.Errorf("look %d: %v", i, got)
		}
	}
	b.rest(memory{120 * mib, allocated}) // the program needs more memory than before the burst
	if b.over(memory{130 * mib, allocated + mib}) {
		t.Error("it frees memory that it needs")
	}
	if !b.over(memory{200 * mib, allocated + 2*mib}) {
		t.Error("it gives nothing back after another burst")
	}
}

// TestGiveBack_AfterABurst checks that the measured memory grows with allocations, and that the system gets it
// back.
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

// TestBurst_AtTheStart checks that the memory at the start is known, even if the first check is in the middle
// of a burst.
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

// TestGrowth_IsABurst checks that connections by the hundred are a burst, and connections one after the other
// are not. The burst ends soon after the last connection.
func TestGrowth_IsABurst(t *testing.T) {
	g := growth{fewest: 1000}
	for i, c := range []struct {
		now  int
		want bool
	}{
		{1100, false}, {1200, false}, {1257, true}, // compared with the number at the start
		{1258, true}, {1258, true}, {1258, true}, {1258, false},
		{20000, true}, {21000, true}, {22000, true}, {21000, true}, {21000, true}, {21000, true}, {21000, false}, // one more sixteenth, then no growth
		{500, false}, {700, false}, {757, true}, // the connections ended, and new ones begin
	} {
		if got := g.look(c.now); got != c.want {
			t.Errorf("look %d, at %d: %v", i, c.now, got)
		}
	}
}

// TestCollectMoreInBursts checks that there is less garbage while goroutines are added, also at the start, and
// the usual amount otherwise.
func TestCollectMoreInBursts(t *testing.T) {
	const usual = 123
	defer debug.SetGCPercent(debug.SetGCPercent(usual))
	percent := func() int {
		p := debug.SetGCPercent(usual)
		debug.SetGCPercent(p)
		return p
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- CollectMoreInBursts().Run(ctx) }() // the test receives the result
		is := func(want int, when string) {
			t.Helper()
			synctest.Wait()
			if got := percent(); got != want {
				t.Errorf("%s: %d, want %d", when, got, want)
			}
		}
		is(garbageInBursts, "at the start")
		<-time.After(burstLasts*lookAtGrowth + 1)
		is(usual, "at rest")
		for range 2 * moreGoroutines {
			go func() { <-ctx.Done() }() // ends with ctx
		}
		<-time.After(lookAtGrowth)
		is(garbageInBursts, "when many have come")
		<-time.After(burstLasts * lookAtGrowth)
		is(usual, "afterwards")
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		is(usual, "at the end")
	})
}

// TestCollectMoreInBursts_LeavesGOGC checks that a lower GOGC is kept.
func TestCollectMoreInBursts_LeavesGOGC(t *testing.T) {
	const less = garbageInBursts / 2
	defer debug.SetGCPercent(debug.SetGCPercent(less))
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- CollectMoreInBursts().Run(ctx) }() // the test receives the result
		synctest.Wait()
		if got := debug.SetGCPercent(less); got != less {
			t.Errorf("%d, want %d", got, less)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
