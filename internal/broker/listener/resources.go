package listener

import (
	"math"
	"os"
	"runtime/debug"

	"github.com/hawser-io/hawser/internal/memlimit"
)

// available is what this process may use, as far as it is told: an unlimited one
// counts as a large one.
func available() resources {
	memory := min(debug.SetMemoryLimit(-1), memlimit.MemoryLimit(os.DirFS("/"))) // the first reads GOMEMLIMIT
	if memory == math.MaxInt64 {
		memory = unlimited
	}
	return resources{memory: memory, files: openFiles()}
}

// unlimited is what an unlimited process is taken to have.
const unlimited = 2 << 30
