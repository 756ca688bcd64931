package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// vmRSS returns a process's resident memory in bytes.
func vmRSS(pid int) (int64, error) { return procStatus(pid, "VmRSS") }

// vmPeak returns the largest resident memory that a process has had, in bytes.
func vmPeak(pid int) (int64, error) { return procStatus(pid, "VmHWM") }

// procStatus returns a field of /proc/pid/status that is in kB, in bytes.
func procStatus(pid int, field string) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("process %d shows no %s", pid, field)
}

// cpuSeconds returns the processor time of a process, user and system, in seconds. The kernel counts in
// nanoseconds and shows hundredths.
func cpuSeconds(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name may contain any byte. After it, utime and stime are the 12th and 13th field.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 13 {
		return 0, fmt.Errorf("process %d shows no processor time", pid)
	}
	user, err := strconv.ParseFloat(f[11], 64)
	system, err2 := strconv.ParseFloat(f[12], 64)
	return (user + system) / 100, errors.Join(err, err2)
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
