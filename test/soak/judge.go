package main

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
)

// quantity is a measured quantity that must not grow.
type quantity struct {
	name  string
	value func(sample) float64
	limit float64 // the allowed growth, relative to the first window
	slack float64 // the allowed growth, absolute
	unit  float64 // divisor for display
}

var quantities = []quantity{
	{name: "goroutines", value: func(s sample) float64 { return s.goroutines }, limit: 0.05, unit: 1},
	// The broker's store has about 30 open files, and the number of its tables varies. A leak still shows,
	// because the storms break hundreds of connections.
	{name: "descriptors", value: func(s sample) float64 { return s.descriptors }, limit: 0.05, slack: 4, unit: 1},
	{name: "resident MiB", value: func(s sample) float64 { return s.resident }, limit: 0.10, unit: 1 << 20},
}

// growth compares the first and the last window of the calm.
type growth struct {
	program, quantity string
	before, after     float64
	unit              float64
	err               error
}

func (g growth) percent() float64 { return 100 * (g.after/g.before - 1) }

// leastSamples is the number of samples in a window that a median needs.
const leastSamples = 10

// judge compares the windows of one program. The program must have been the same process during the calm.
func (p plan) judge(program string, s series) ([]growth, error) {
	calm := s.in(p.calm, p.judged)
	before, after := calm.in(p.calm, p.calm+p.window), calm.in(p.judged-p.window, p.judged)
	if len(before) < leastSamples || len(after) < leastSamples {
		return nil, fmt.Errorf("%s: only %d and %d samples in the first and last %s of the calm, want %d of each: it was away, or hung", program, len(before), len(after), p.window, leastSamples)
	}
	for _, x := range calm {
		if x.pid != calm[0].pid {
			return nil, fmt.Errorf("%s: process %d became process %d at %s: it should have lived through the calm", program, calm[0].pid, x.pid, x.at)
		}
	}
	var all []growth
	for _, q := range quantities {
		g := growth{program: program, quantity: q.name, before: before.median(q.value), after: after.median(q.value), unit: q.unit}
		if g.after-g.before > max(q.limit*g.before, q.slack) {
			g.err = fmt.Errorf("%s: %s grew by %.1f %%, from %.1f to %.1f; %.0f %% are allowed, or %.0f",
				program, q.name, g.percent(), g.before/q.unit, g.after/q.unit, 100*q.limit, q.slack/q.unit)
		}
		all = append(all, g)
	}
	return all, nil
}

// table prints the growths and returns the errors among them.
func table(out io.Writer, all []growth) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "program\tquantity\tfirst window\tlast window\tgrowth\t\t")
	var errs []error
	for _, g := range all {
		result := "ok"
		if g.err != nil {
			result = "TOO MUCH"
			errs = append(errs, g.err)
		}
		fmt.Fprintf(w, "%s\t%s\t%.1f\t%.1f\t%+.1f %%\t%s\t\n", g.program, g.quantity, g.before/g.unit, g.after/g.unit, g.percent(), result)
	}
	return errors.Join(append(errs, w.Flush())...)
}
