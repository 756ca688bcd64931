package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

const pages = "../../../docs/benchmarks"

// TestCharts_AreDrawnFromCommittedOutputs: a picture must not show other figures than the outputs beside it.
func TestCharts_AreDrawnFromCommittedOutputs(t *testing.T) {
	want, err := drawAll(os.DirFS(pages))
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(pages, "*.svg"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(want) {
		t.Errorf("%d pictures are committed, and there are %d charts", len(files), len(want))
	}
	page, err := os.ReadFile(pages + ".md")
	if err != nil {
		t.Fatal(err)
	}
	for name, svg := range want {
		got, err := os.ReadFile(filepath.Join(pages, name))
		if err != nil || !bytes.Equal(got, svg) {
			t.Errorf("%s is not what the outputs give (%v): run make bench-plots and commit the result", name, err)
		}
		if !bytes.Contains(page, []byte("(benchmarks/"+name+")")) {
			t.Errorf("docs/benchmarks.md does not show %s", name)
		}
		if err := wellFormed(svg); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func wellFormed(text []byte) error {
	d := xml.NewDecoder(bytes.NewReader(text))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

const printed = `make bench of abc
bin/hawser-broker
limits of this machine
  fdatasync of 4 KiB                    0.123 [0.1–0.2]   ms
broker
  publishes, 64 in flight               6000 [5000–7000]  works/s of 4 KiB
targets
  publishes at 64 : echo at 64          0.42 ≥ 0.50       MISSED

500 agents × 20 works of 2048 bytes at one address

|                | ada167f | now | now : ada167f |
|----------------|---------|-----|---------------|
| memory of 9, MiB | 200   | 150 | 0.75          |
| at rest        | 0       | 1   | –             |

| target  |             |     |
|---------|-------------|-----|
| restart | 1.11 ≤ 0.90 | met |

goos: linux
BenchmarkResume/hawser/cursor-2   	       1	   2300 ns/op	         0.5000 cpu-ms/op
ok  	github.com/hawser-io/hawser/test/interop	65.186s
`

func TestReadOutputs(t *testing.T) {
	o, err := readOutputs(fstest.MapFS{"a.txt": {Data: []byte(printed)}, "a.svg": {Data: []byte("1")}})
	if err != nil {
		t.Fatal(err)
	}
	want := map[ref]value{
		{"limits of this machine", "fdatasync of 4 KiB"}: {0.123, "0.123", "a.txt"},
		{"broker", "publishes, 64 in flight"}:            {6000, "6000", "a.txt"},
		{"targets", "publishes at 64 : echo at 64"}:      {0.5, "0.50", "a.txt"},
		{"ada167f", "memory of 9, MiB"}:                  {200, "200", "a.txt"},
		{"now", "memory of 9, MiB"}:                      {150, "150", "a.txt"},
		{"now : ada167f", "memory of 9, MiB"}:            {0.75, "0.75", "a.txt"},
		{"ada167f", "at rest"}:                           {0, "0", "a.txt"},
		{"now", "at rest"}:                               {1, "1", "a.txt"},
		{"targets", "restart"}:                           {0.9, "0.90", "a.txt"},
		{"BenchmarkResume/hawser/cursor", "ns/op"}:       {2300, "2300", "a.txt"},
		{"BenchmarkResume/hawser/cursor", "cpu-ms/op"}:   {0.5, "0.5000", "a.txt"},
	}
	if diff := cmp.Diff(want, o.figures, cmp.AllowUnexported(value{})); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"make bench of abc", "500 agents × 20 works of 2048 bytes at one address"}, o.runs["a.txt"]); diff != "" {
		t.Error(diff)
	}
	if name, v, err := o.find(ref{"now", "memory of *, MiB"}); name != "memory of 9, MiB" || v.number != 150 || err != nil {
		t.Errorf("got %q, %v, %v", name, v, err)
	}
	for _, r := range []ref{{"now", "*"}, {"now", "cold start"}} {
		if _, _, err := o.find(r); err == nil {
			t.Errorf("%v is found", r)
		}
	}
}

// TestReadOutputs_TwoRuns: t1: a run is stored; t2: the same part is stored under another name. The charts must not
// show a mixture.
func TestReadOutputs_TwoRuns(t *testing.T) {
	_, err := readOutputs(fstest.MapFS{"a.txt": {Data: []byte(printed)}, "b.txt": {Data: []byte(printed)}})
	if err == nil || !strings.Contains(err.Error(), "a.txt and b.txt") {
		t.Errorf("got %v", err)
	}
}

func TestScale(t *testing.T) {
	for _, c := range []struct {
		name        string
		logarithmic bool
		ratios      []float64
		marks       []float64
		at          map[float64]float64
	}{
		{"all below the reference", false, []float64{0.2, 0.9}, []float64{0, 0.2, 0.4, 0.6, 0.8, 1}, map[float64]float64{0.5: 0.5, 1: 1}},
		{"one above", false, []float64{2.9}, []float64{0, 0.5, 1, 1.5, 2, 2.5, 3}, map[float64]float64{3: 1}},
		{"near ten", false, []float64{9.9}, []float64{0, 2, 4, 6, 8, 10}, map[float64]float64{5: 0.5}},
		{"far above", false, []float64{47}, []float64{0, 10, 20, 30, 40, 50}, map[float64]float64{25: 0.5}},
		{"logarithmic", true, []float64{0.002, 1}, []float64{0.001, 0.01, 0.1, 1}, map[float64]float64{0.001: 0, 1: 1}},
	} {
		p := picture{logarithmic: c.logarithmic}
		for _, r := range c.ratios {
			p.bars = append(p.bars, bar{ratio: r})
		}
		marks, at := p.scale()
		same := func(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 }
		if !slices.EqualFunc(marks, c.marks, same) {
			t.Errorf("%s: marks %v, want %v", c.name, marks, c.marks)
		}
		for ratio, want := range c.at {
			if !same(at(ratio), want) {
				t.Errorf("%s: %v is at %v, want %v", c.name, ratio, at(ratio), want)
			}
		}
	}
}

func TestShort(t *testing.T) {
	for ratio, want := range map[float64]string{1.0061: "1.01", 47.1: "47.10", 0.01: "0.01", 0.00098: "0.00098", 0.5 / 31500: "0.000016"} {
		if got := short(ratio); got != want {
			t.Errorf("%v: got %s, want %s", ratio, got, want)
		}
	}
}
