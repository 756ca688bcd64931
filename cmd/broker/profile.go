//go:build profile

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"time"
)

// profileEvery is short, because the benchmark kills brokers.
const profileEvery = 2 * time.Second

// init writes CPU profiles into the directory HAWSER_PROFILES until the process ends. `make pgo` builds the broker
// with this file, and merges the profiles into default.pgo.
func init() {
	dir := os.Getenv("HAWSER_PROFILES")
	go func() {
		for n := 0; ; n++ {
			if err := profile(filepath.Join(dir, fmt.Sprintf("%d-%d.pprof", os.Getpid(), n))); err != nil {
				fmt.Fprintln(os.Stderr, "profile:", err)
				os.Exit(1)
			}
		}
	}()
}

// profile writes a profile. Its name is final only when it is complete.
func profile(name string) error {
	f, err := os.Create(name + ".part")
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return err
	}
	<-time.After(profileEvery)
	pprof.StopCPUProfile()
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
