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
	lookAtMemory = time.Second
	// A program rests after restChecks checks in each of which it allocated at most restBytes. It does not rest any
	// more after one with busyBytes.
	restChecks, restBytes, busyBytes = 10, 4 << 20, 2 * restBytes
	// restGarbage is the share of garbage, as a divisor of the live heap, at which a program at rest collects it. A
	// collection marks about 1 GB per second of one processor. So a program that allocates restBytes per second spends
	// 1.6 percent of a processor on collections, however large its heap is.
	restGarbage = 4
	// minGarbage is the size of garbage that is not worth a collection, as in the runtime.
	minGarbage = 4 << 20
)

// CollectAtRest is a task that keeps little garbage while a program is at rest. With the default of the runtime, a
// program of thousands of idle sessions holds twice the memory that it needs. After a burst the system gets none of it
// back, because garbage fills it again within minutes. The percentage of the runtime is not changed: a lower one would
// make the next burst wait for collections. GOGC in the environment takes precedence.
func CollectAtRest() taskgroup.Task {
	return taskgroup.Task{Name: "memory", Run: func(ctx context.Context) error {
		if os.Getenv("GOGC") != "" {
			<-ctx.Done()
			return nil
		}
		p := pace{last: readHeap()}
		taskgroup.Every(ctx, lookAtMemory, func() {
			switch p.next(readHeap()) {
			case none:
				return
			case giveBack:
				runtime.GC() // content of sync.Pool is freed by the second collection
				debug.FreeOSMemory()
			case collect:
				runtime.GC()
			}
			p.last = readHeap() // a collection may take longer than the interval, and its time counts for no check
		})
		return nil
	}}
}

// heap is the size of the heap, in bytes.
type heap struct {
	allocated uint64 // by the program since its start
	live      uint64 // after the last collection
	now       uint64 // with the garbage since then
}

func readHeap() heap {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return heap{allocated: s[0].Value.Uint64(), live: s[1].Value.Uint64(), now: s[2].Value.Uint64()}
}

// action is what follows from a check.
type action uint8

const (
	none     action = iota
	giveBack        // the rest begins: collect garbage, and give memory back to the system
	collect         // collect garbage
)

// pace detects whether a program is at rest. The zero value is one that is busy.
type pace struct {
	last  heap
	calm  int // checks in a row that allocated at most restBytes
	rests bool
}

// next is called at each check.
func (p *pace) next(h heap) action {
	more := h.allocated - p.last.allocated
	p.last = h
	if p.calm++; more > restBytes {
		p.calm = 0
	}
	switch {
	case !p.rests && p.calm >= restChecks:
		p.rests = true
		return giveBack
	case p.rests && more >= busyBytes:
		p.rests = false
	case p.rests && h.now > h.live+max(h.live/restGarbage, minGarbage):
		return collect
	}
	return none
}
