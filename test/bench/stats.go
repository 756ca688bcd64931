package main

import (
	"fmt"
	"slices"
	"time"
)

// rounds is the number of measurements of each figure. Tables show median and spread.
const rounds = 5

// sample is one figure, with one value per round.
type sample []float64

func (s sample) median() float64 {
	sorted := slices.Sorted(slices.Values(s))
	if len(sorted) == 0 {
		return 0
	}
	if n := len(sorted); n%2 == 0 {
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return sorted[len(sorted)/2]
}

// text returns "median [least–most]" in the given format.
func (s sample) text(format string) string {
	if len(s) == 0 {
		return "–"
	}
	return fmt.Sprintf(format+" ["+format+"–"+format+"]", s.median(), slices.Min(s), slices.Max(s))
}

// percentile returns the p-th percentile (0–100) of ds, which it sorts.
func percentile(ds []time.Duration, p float64) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	slices.Sort(ds)
	return ds[min(len(ds)-1, int(float64(len(ds))*p/100))]
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// ratios divides round by round, so that a slow moment of the machine affects both values.
func ratios(a, b sample) sample {
	var out sample
	for i := range min(len(a), len(b)) {
		out = append(out, a[i]/b[i])
	}
	return out
}
