// Package memlimit keeps a program within the memory limits of its control groups.
package memlimit

import (
	"bufio"
	"bytes"
	"context"
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

	"github.com/hawser-io/hawser/internal/taskgroup"
)

// MemoryLimit returns the memory limit of this process's control groups in bytes, [math.MaxInt64] if there is
// none. root is the root of the file system.
func MemoryLimit(root fs.FS) int64 {
	limit := int64(math.MaxInt64)
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return limit // the system is not Linux
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

// noLimit is above every real limit. It is below the value of version 1 for no limit, which is the largest
// multiple of the page size.
const noLimit = 1 << 60

// lowest returns the lowest limit of a control group and its ancestors. In a container the path may be that of
// the host; then only the top exists.
func lowest(root fs.FS, top, group, file string) int64 {
	limit := int64(math.MaxInt64)
	for group = path.Clean("/" + group); ; group = path.Dir(group) {
		if b, err := fs.ReadFile(root, path.Join(top, group, file)); err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && n < noLimit { // the text "max" is no limit
				limit = min(limit, n)
			}
		}
		if group == "/" {
			return limit
		}
	}
}

// LimitMemory makes the runtime collect garbage early enough to keep the process below nine tenths of its
// limit. Above the limit the kernel would kill it. GOMEMLIMIT in the environment takes precedence.
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
	// lookAtMemory is the interval of the checks.
	lookAtMemory = 10 * time.Second
	// regrowChecks is the number of checks in which a program at its present rate must not allocate as much as it
	// gives back. A give-back costs two collections. So they are at most as frequent as those of an idle program,
	// for which the runtime collects every two minutes.
	regrowChecks = 12
	// spareShare is the part of the needed memory that is not worth a collection: a fourth.
	spareShare = 4
)

// GiveMemoryBack is a task that returns memory to the system after a burst. The runtime does so only with a
// collection, and an idle program makes one every two minutes.
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

// memory is what a process holds of the system, and all that it ever allocated, in bytes.
type memory struct{ held, allocated uint64 }

func memoryNow() memory {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return memory{held: s[0].Value.Uint64() - s[1].Value.Uint64(), allocated: s[2].Value.Uint64()}
}

// burst detects the end of a burst.
type burst struct {
	last memory
	// least is the least memory held since the last give-back.
	least uint64
}

// newBurst returns a burst for a program that starts. now is measured at once. The first check is later, and
// may be in the middle of a burst, for example when all agents connect to a new broker.
func newBurst(now memory) (b burst) {
	b.rest(now)
	return b
}

// over reports whether the program holds much more than it needed, and would need long to fill that again. Both
// are relative to the program: a fleet of thousands allocates at rest more than a small one in a burst.
func (b *burst) over(now memory) bool {
	more := now.allocated - b.last.allocated
	b.least = min(b.least, now.held)
	b.last = now
	spare := now.held - b.least
	return spare > b.least/spareShare && more*regrowChecks <= spare
}

// giveBack returns unused memory to the system.
func (b *burst) giveBack() {
	runtime.GC() // sync.Pool content is freed by the second collection
	debug.FreeOSMemory()
	b.rest(memoryNow())
}

// rest sets the present memory as the least.
func (b *burst) rest(now memory) { b.last, b.least = now, now.held }
