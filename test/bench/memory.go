package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// vmRSS returns a process's resident memory in bytes.
func vmRSS(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("process %d shows no VmRSS", pid)
}

// sessionMemory returns the memory that each of n sessions added to the broker, in KiB.
func sessionMemory(pid int, before int64, n int) (float64, error) {
	after, err := vmRSS(pid)
	return float64(after-before) / float64(n) / 1024, err
}

// memory measures the memory of every program of the fleet.
func (b *bench) memory() error {
	b.results.rss = map[string]float64{}
	for _, name := range b.fleet.Programs() {
		bytes, err := vmRSS(b.fleet.Program(name).PID())
		if err != nil {
			return err
		}
		b.results.rss[name] = float64(bytes) / (1 << 20)
	}
	return nil
}
