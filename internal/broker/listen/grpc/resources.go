package grpc

import (
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// available is what this process may use, as far as it is told: an unlimited one
// counts as a large one.
func available() resources {
	memory := debug.SetMemoryLimit(-1) // reads it, GOMEMLIMIT
	for _, file := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // no cgroup of this version
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil { // else it says "max"
			memory = min(memory, n)
		}
	}
	if memory == math.MaxInt64 {
		memory = unlimited
	}
	return resources{memory: memory, files: openFiles()}
}

// unlimited is what an unlimited process is taken to have.
const unlimited = 2 << 30
