package memlimit

import (
	"context"
	"math"
	"os"
	"runtime"
	"runtime/metrics"
	"slices"
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

// TestPace checks when a rest begins and ends, and when garbage is collected meanwhile.
func TestPace(t *testing.T) {
	type check struct {
		more    uint64 // allocated since the check before
		garbage uint64 // beside 400 MiB that live
		want    action
	}
	var p pace
	var all uint64
	look := func(name string, checks ...check) {
		t.Helper()
		for i, c := range checks {
			all += c.more
			if got := p.next(heap{allocated: all, live: 400 << 20, now: 400<<20 + c.garbage}); got != c.want {
				t.Errorf("%s, check %d: %d", name, i, got)
			}
		}
	}
	calm := slices.Repeat([]check{{restBytes, 300 << 20, none}}, restChecks-1)
	look("a burst at the start", check{100 << 20, 0, none}, check{busyBytes, 300 << 20, none})
	look("calm, but not long", append(calm, check{restBytes + 1, 300 << 20, none})...)
	look("calm for long", append(calm, check{0, 300 << 20, giveBack})...)
	look("little garbage", check{restBytes, 0, none}, check{restBytes, 100 << 20, none})
	look("more garbage", check{busyBytes - 1, 100<<20 + 1, collect}, check{restBytes, 0, none})
	look("a burst", check{busyBytes, 300 << 20, none}, check{0, 300 << 20, none})
	look("calm again", append(calm[1:], check{restBytes, 300 << 20, giveBack})...)
	for garbage, want := range map[uint64]action{minGarbage: none, minGarbage + 1: collect} {
		if got := p.next(heap{allocated: all, live: 1 << 20, now: 1<<20 + garbage}); got != want {
			t.Errorf("%d bytes of garbage beside 1 MiB: %d, want %d", garbage, got, want)
		}
	}
}

// TestReadHeap checks that allocations count, and that a collection ends the garbage.
func TestReadHeap(t *testing.T) {
	const bytes = 64 << 20
	before := readHeap()
	all := make([]byte, bytes)
	if got := readHeap(); got.allocated-before.allocated < bytes || got.now < bytes {
		t.Errorf("%+v, before %+v", got, before)
	}
	runtime.KeepAlive(all)
	runtime.GC()
	if got := readHeap(); got.now > got.live+bytes/2 {
		t.Errorf("after a collection: %+v", got)
	}
}

// TestCollectAtRest_GivesBack checks that the system gets the memory of a burst back when the program rests.
func TestCollectAtRest_GivesBack(t *testing.T) {
	t.Setenv("GOGC", "") // otherwise the task does nothing
	const bytes = 64 << 20
	all := make([]byte, 2*bytes)
	for i := 0; i < len(all); i += 4096 {
		all[i] = 1
	}
	before := held()
	runtime.KeepAlive(all)
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- CollectAtRest().Run(ctx) }() // ends with ctx
		<-time.After((restChecks + 1) * lookAtMemory)
		synctest.Wait()
		if after := held(); after > before-bytes {
			t.Errorf("%d bytes became %d", before, after)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// held returns what the process holds of the system, in bytes.
func held() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64() - s[1].Value.Uint64()
}
