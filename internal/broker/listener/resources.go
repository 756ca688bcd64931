package listener

import (
	"math"
	"os"
	"runtime/debug"

	"github.com/hawser-io/hawser/internal/memlimit"
)

// available returns the resources of this process. Without a memory limit, unlimited is used.
func available() resources {
	memory := min(debug.SetMemoryLimit(-1), memlimit.MemoryLimit(os.DirFS("/"))) // the first reads GOMEMLIMIT
	if memory == math.MaxInt64 {
		memory = unlimited
	}
	return resources{memory: memory, files: openFiles()}
}

// unlimited is the memory that is assumed for a process without a limit: 2 GiB.
const unlimited = 2 << 30
