package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hawser-io/hawser/internal/local/fleet"
)

// sample is the measured state of one process at one time.
type sample struct {
	at                      time.Duration
	pid                     int
	goroutines, descriptors float64
	resident                float64 // bytes
}

// series are the samples of one program, oldest first.
type series []sample

// measured names the metrics that every program serves.
var measured = []struct {
	metric string
	set    func(*sample, float64)
}{
	{"go_goroutines", func(s *sample, v float64) { s.goroutines = v }},
	{"process_open_fds", func(s *sample, v float64) { s.descriptors = v }},
	{"process_resident_memory_bytes", func(s *sample, v float64) { s.resident = v }},
}

// parse reads the measured metrics from the text of /metrics.
func parse(r io.Reader) (s sample, err error) {
	found := 0
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		for _, m := range measured {
			text, ok := strings.CutPrefix(lines.Text(), m.metric+" ")
			if !ok {
				continue
			}
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return s, fmt.Errorf("%s: %w", m.metric, err)
			}
			m.set(&s, v)
			found++
		}
	}
	if err := lines.Err(); err != nil {
		return s, err
	}
	if found != len(measured) {
		return s, errors.New("some of the metrics of process and runtime are missing")
	}
	return s, nil
}

// sampleEvery is the time between samples of a program. A program that is paused or down has no sample at that
// time.
const sampleEvery = time.Second

// sampler takes samples of every program of a fleet.
type sampler struct {
	fleet *fleet.Fleet
	since func() time.Duration

	mu  sync.Mutex
	got map[string]series
}

// run samples until ctx ends.
func (s *sampler) run(ctx context.Context) {
	var programs sync.WaitGroup
	for _, name := range s.fleet.Programs() {
		programs.Go(func() {
			tick := time.NewTicker(sampleEvery)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					s.sample(ctx, name)
				case <-ctx.Done():
					return
				}
			}
		})
	}
	programs.Wait()
}

func (s *sampler) sample(ctx context.Context, name string) {
	p := s.fleet.Program(name)
	pid := p.PID()
	got, err := fetch(ctx, "http://"+p.Admin+"/metrics")
	if err != nil || pid == 0 || p.PID() != pid {
		return // down, paused, or replaced by another process
	}
	got.at, got.pid = s.since(), pid
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got[name] = append(s.got[name], got)
}

func fetch(ctx context.Context, url string) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, sampleEvery)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return sample{}, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return sample{}, err
	}
	defer resp.Body.Close()
	return parse(resp.Body)
}

// write writes all samples to a file, for the search of a leak.
func (s *sampler) write(file string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b bytes.Buffer
	fmt.Fprintln(&b, "program,seconds,pid,goroutines,descriptors,resident_bytes")
	for _, name := range slices.Sorted(maps.Keys(s.got)) {
		for _, x := range s.got[name] {
			fmt.Fprintf(&b, "%s,%.1f,%d,%.0f,%.0f,%.0f\n", name, x.at.Seconds(), x.pid, x.goroutines, x.descriptors, x.resident)
		}
	}
	return os.WriteFile(file, b.Bytes(), 0o600)
}

func (s *sampler) series(name string) series {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got[name])
}

// in returns the samples of a period.
func (s series) in(from, to time.Duration) series {
	return slices.DeleteFunc(slices.Clone(s), func(x sample) bool { return x.at < from || x.at >= to })
}

// median returns the median of one value. It hides the short changes of the load.
func (s series) median(value func(sample) float64) float64 {
	values := make([]float64, len(s))
	for i, x := range s {
		values[i] = value(x)
	}
	slices.Sort(values)
	return values[len(values)/2]
}
