package main

import (
	"bytes"
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
	return procKiB(fmt.Sprintf("/proc/%d/status", pid), field)
}

// procKiB returns a field of a file in /proc that is in kB, in bytes.
func procKiB(file, field string) (int64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("%s shows no %s", file, field)
}

// cpuSeconds returns the processor time of a process and its ended children, user and system, in seconds. The kernel
// counts in nanoseconds and shows hundredths.
func cpuSeconds(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name may contain any byte. After it, utime, stime, cutime and cstime are the fields from the 12th on.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 15 {
		return 0, fmt.Errorf("process %d shows no processor time", pid)
	}
	hundredths := 0.0
	for _, field := range f[11:15] {
		n, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return 0, err
		}
		hundredths += n
	}
	return hundredths / 100, nil
}

// usedBy returns memory and processor seconds of processes. Memory that several of them share counts once.
func usedBy(pids ...int) (u used, err error) {
	for _, pid := range pids {
		memory, err := procKiB(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Pss")
		if err != nil {
			return u, err
		}
		cpu, err := cpuSeconds(pid)
		if err != nil {
			return u, err
		}
		u.memory, u.cpu = u.memory+float64(memory)/(1<<20), u.cpu+cpu
	}
	return u, nil
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
