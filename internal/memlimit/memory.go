// Package memlimit keeps a program within the memory that its control groups let it have.
package memlimit

import (
	"bufio"
	"bytes"
	"context"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"time"
)

// MemoryLimit is how many bytes the control groups of this process let it have,
// [math.MaxInt64] where they do not bound it. root is the root of the file system.
func MemoryLimit(root fs.FS) int64 {
	limit := int64(math.MaxInt64)
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return limit // it is not Linux
	}
	for lines := bufio.NewScanner(bytes.NewReader(groups)); lines.Scan(); {
		// "0::/PATH" of version 2, "N:memory:/PATH" of version 1.
		parts := strings.SplitN(lines.Text(), ":", 3)
		if len(parts) < 3 {
			continue
		}
		switch {
		case parts[0] == "0" && parts[1] == "":
			limit = min(limit, lowest(root, "sys/fs/cgroup", parts[2], "memory.max"))
		case parts[1] == "memory":
			limit = min(limit, lowest(root, "sys/fs/cgroup/memory", parts[2], "memory.limit_in_bytes"))
		}
	}
	return limit
}

// noLimit is above every limit that means something, and below what version 1 says where there is
// none: the largest number of bytes that is a whole number of pages.
const noLimit = 1 << 60

// lowest is the lowest limit of a control group and those above it. In a container
// the path may be that on the host: then there is only the top.
func lowest(root fs.FS, top, group, file string) int64 {
	limit := int64(math.MaxInt64)
	for group = path.Clean("/" + group); ; group = path.Dir(group) {
		if b, err := fs.ReadFile(root, path.Join(top, group, file)); err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && n < noLimit { // else it says "max"
				limit = min(limit, n)
			}
		}
		if group == "/" {
			return limit
		}
	}
}

// LimitMemory has the runtime collect garbage so early that the process stays below nine
// tenths of what its control groups let it have: beyond that the kernel would kill it.
// GOMEMLIMIT in the environment wins.
func LimitMemory(log *slog.Logger) {
	limit := MemoryLimit(os.DirFS("/"))
	if os.Getenv("GOMEMLIMIT") == "" && limit < math.MaxInt64 {
		debug.SetMemoryLimit(limit / 10 * 9)
	}
	if set := debug.SetMemoryLimit(-1); set < math.MaxInt64 {
		log.Info("memory is limited", "bytes", set, "control_group", limit)
	}
}

const (
	// lookAtMemory is how often memory is looked at; quietBytes is what a program allocates
	// meanwhile that is at rest, and burstBytes how much it has too much after a burst.
	lookAtMemory = 10 * time.Second
	quietBytes   = 16 << 20
	burstBytes   = 64 << 20
)

// GiveMemoryBack is a task that gives memory back to the system after a burst. The
// runtime does that too, but only with a collection, and a program that is at rest makes
// one every two minutes.
func GiveMemoryBack() taskgroup.Task {
	return taskgroup.Task{Name: "memory", Run: func(ctx context.Context) error {
		b := newBurst(memoryNow())
		taskgroup.Every(ctx, lookAtMemory, func() {
			if b.over(memoryNow()) {
				b.giveBack()
			}
		})
		return nil
	}}
}

const (
	// lookAtGrowth is how often the goroutines are counted, moreGoroutines how many more there
	// have to be for a burst, or a sixteenth if that is more, and burstLasts how many looks it
	// lasts after that was seen last.
	lookAtGrowth   = time.Second / 2
	moreGoroutines = 256
	burstLasts     = 4
	// garbageInBursts is how much garbage there is in a burst, in percent of all else.
	garbageInBursts = 20
)

// CollectMoreInBursts is a task that has garbage collected more often while there are more and
// more goroutines. It is for a program to which thousands of connections come at once, each of
// which leaves several times as much garbage as it needs from then on. Usually the runtime waits
// until there is as much garbage as there is of all else. What is needed then stands between what
// no longer is, as long as the connections last, and little of what is free between it is ever
// used again.
func CollectMoreInBursts() taskgroup.Task {
	return taskgroup.Task{Name: "collections", Run: func(ctx context.Context) error {
		usual := debug.SetGCPercent(garbageInBursts) // a program that starts may be in a burst
		defer debug.SetGCPercent(usual)
		if usual <= garbageInBursts { // of GOGC in the environment, which wins, also where that is off
			debug.SetGCPercent(usual)
			<-ctx.Done()
			return nil
		}
		g := growth{fewest: runtime.NumGoroutine(), left: burstLasts}
		taskgroup.Every(ctx, lookAtGrowth, func() {
			before := g.left > 0
			switch burst := g.look(runtime.NumGoroutine()); {
			case burst && !before:
				debug.SetGCPercent(garbageInBursts)
			case before && !burst:
				debug.SetGCPercent(usual)
			}
		})
		return nil
	}}
}

// growth notices that there are more and more of something.
type growth struct {
	// fewest is how many there were when a growth was seen last, or the fewest since then.
	fewest int
	left   int // looks until the burst is over
}

// look reports whether there is a burst, now that there are so many.
func (g *growth) look(now int) bool {
	g.fewest = min(g.fewest, now)
	if now > g.fewest+max(moreGoroutines, g.fewest/16) {
		g.fewest, g.left = now, burstLasts
	} else if g.left > 0 {
		g.left--
	}
	return g.left > 0
}

// memory is what a process has of the system, and what it ever allocated, in bytes.
type memory struct{ held, allocated uint64 }

func memoryNow() memory {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return memory{held: s[0].Value.Uint64() - s[1].Value.Uint64(), allocated: s[2].Value.Uint64()}
}

// burst notices when a burst is over.
type burst struct {
	last memory
	// least is the least that was held since memory was given back.
	least uint64
}

// newBurst returns a burst of a program that starts. What is held now counts: the first look is
// later, and may come in the middle of a burst, as when all agents come to a broker that starts.
func newBurst(now memory) (b burst) {
	b.rest(now)
	return b
}

// over reports whether much more is held than was needed, and little is needed now.
func (b *burst) over(now memory) bool {
	quiet := now.allocated-b.last.allocated < quietBytes
	b.least = min(b.least, now.held)
	b.last = now
	return quiet && now.held > b.least+burstBytes
}

// giveBack gives back what is not needed.
func (b *burst) giveBack() {
	runtime.GC() // what pools keep goes with the second one
	debug.FreeOSMemory()
	b.rest(memoryNow())
}

// rest takes it that no less is needed than is held now.
func (b *burst) rest(now memory) { b.last, b.least = now, now.held }
