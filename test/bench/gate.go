package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hawser-io/hawser/internal/pki"
)

const (
	partGate = "gate"
	// gateRounds is the number of updates of each cluster.
	gateRounds = 20
	// beforeThis is the commit that the gate compares with, if none is named.
	beforeThis = "HEAD~1"
)

// gateSize is small enough for ten brokers in five minutes.
var gateSize = size{agents: 500, works: 20}

// gateText is the committed table: a figure of [rig.gateFigures], and the largest ratio to the commit before.
//
//go:embed gate.tsv
var gateText []byte

// limit is one row of the committed table.
type limit struct {
	figure string
	ratio  float64
}

// parseLimits reads the committed table. Lines that begin with # are comments.
func parseLimits(text []byte) (all []limit, err error) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		if line := lines.Text(); line != "" && !strings.HasPrefix(line, "#") {
			figure, ratio, _ := strings.Cut(line, "\t")
			l := limit{figure: figure}
			if l.ratio, err = strconv.ParseFloat(ratio, 64); err != nil {
				return nil, fmt.Errorf("gate.tsv:%d: write figure, tab, largest ratio: %w", n, err)
			}
			all = append(all, l)
		}
	}
	return all, lines.Err()
}

// gatePart measures the broker of the commit before and the present one in alternating rounds.
func gatePart(ctx context.Context, root string, o options, out io.Writer) error {
	limits, err := parseLimits(gateText)
	if err != nil {
		return err
	}
	now, err := present(ctx, root)
	if err != nil {
		return err
	}
	before, err := checkout(ctx, root, o.base, now, o.ownAgents)
	if err != nil {
		return err
	}
	began := time.Now()
	samples := map[string]map[string]sample{}
	err = withKeys(func(keys pki.Dir) error {
		for round := range rounds {
			fmt.Fprintf(os.Stderr, "bench: gate: round %d of %d after %.0f s\n", round+1, rounds, time.Since(began).Seconds())
			pair := []subject{before, now}
			if round%2 == 1 { // so that a machine that becomes slower does not favor one of them
				slices.Reverse(pair)
			}
			for _, s := range pair {
				if err := withRig(ctx, s, gateSize, keys, func(r *rig) error {
					figures, err := r.gateFigures(ctx, gateSize)
					if err == nil {
						collect(samples, s.name, figures)
					}
					return err
				}); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	rows, goals, err := gateTable(before.name, limits, samples[before.name], samples[now.name])
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d agents × %d works of %d bytes, medians of %d alternations in %.0f s\n\n", gateSize.agents, gateSize.works, workBytes, rounds, time.Since(began).Seconds())
	writeMarkdown(out, rows)
	if o.check {
		return checkGoals(goals)
	}
	return nil
}

// collect adds one measurement of a subject to its samples.
func collect(samples map[string]map[string]sample, subject string, figures map[string]float64) {
	if samples[subject] == nil {
		samples[subject] = map[string]sample{}
	}
	for name, value := range figures {
		samples[subject][name] = append(samples[subject][name], value)
	}
}

// gateFigures measures one broker. The names are those of gate.tsv: processor in µs, and allocations.
func (r *rig) gateFigures(ctx context.Context, z size) (map[string]float64, error) {
	figures := map[string]float64{}
	note := func(of string, c cost, n int) {
		figures["processor per "+of+", µs"], figures["allocations per "+of] = c.per(n).microseconds(), c.per(n).allocs
	}
	c, _, err := r.during(ctx, "load")
	if err != nil {
		return nil, err
	}
	note("publish", c, z.all())
	cold, err := r.start(ctx)
	if err != nil {
		return nil, err
	}
	note("session", cold.cost, z.agents)
	c, took, err := r.during(ctx, "update?"+updateArgs(z.agents, gateRounds).Encode())
	if err != nil {
		return nil, err
	}
	note("delivery", c, len(took))
	killed, err := r.restart(ctx, r.kill)
	if err != nil {
		return nil, err
	}
	note("restart", killed.cost, z.agents)
	return figures, nil
}

// gateTable returns the rows of the table, and the targets.
func gateTable(commit string, limits []limit, before, now map[string]sample) (rows [][]string, goals []goal, err error) {
	rows = [][]string{{"", commit, "now", "now : " + commit, "limit", ""}}
	for _, l := range limits {
		b, n := before[l.figure], now[l.figure]
		if len(b) == 0 || len(n) == 0 {
			return nil, nil, fmt.Errorf("gate.tsv: %q is not measured: use a name of gateFigures", l.figure)
		}
		r := ratios(n, b)
		g := goal{name: l.figure, got: r.median(), want: l.ratio, atMost: true}
		rows = append(rows, []string{l.figure, fmt.Sprintf("%.0f", b.median()), fmt.Sprintf("%.0f", n.median()), r.text("%.2f"), fmt.Sprintf("%.2f", l.ratio), g.result()})
		goals = append(goals, g)
	}
	return rows, goals, nil
}
