package main

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// ref names one figure: a column of a table of the parts fleet and gate, or a section of the other tables, and the
// name of the row. name is a pattern of [path.Match], because some names contain the size of the run.
type ref struct{ section, name string }

// value is one figure as the bench has printed it.
type value struct {
	number float64 // of a target: its limit
	text   string
	file   string
}

// outputs are the figures of all runs, and for each file the lines that describe its run.
type outputs struct {
	figures map[ref]value
	runs    map[string][]string
}

var (
	number = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?`)
	target = regexp.MustCompile(`[≤≥] ([0-9]+\.[0-9]+)$`)
	// processors is at the end of the name of a benchmark.
	processors = regexp.MustCompile(`-[0-9]+$`)
	// gap is between two columns of an aligned table.
	gap = regexp.MustCompile(`\s{2,}`)
	// describes matches the first line of a run, and the line with the size of the fleet.
	describes = regexp.MustCompile(`^make bench |agents × `)
)

// readOutputs reads all files that end with .txt. The same figure in two files is an error: which of them is newer is
// unknown.
func readOutputs(dir fs.FS) (outputs, error) {
	o := outputs{figures: map[ref]value{}, runs: map[string][]string{}}
	files, err := fs.Glob(dir, "*.txt")
	if err != nil {
		return o, err
	}
	for _, file := range files {
		text, err := fs.ReadFile(dir, file)
		if err != nil {
			return o, err
		}
		if err := o.read(file, string(text)); err != nil {
			return o, err
		}
	}
	return o, nil
}

// read reads the output of one run.
func (o outputs) read(file, text string) error {
	section, columns := "", []string(nil)
	for line := range strings.Lines(text) {
		if describes.MatchString(line) {
			o.runs[file] = append(o.runs[file], strings.TrimSpace(line))
		}
		cells := gap.Split(strings.TrimSpace(line), -1)
		switch {
		case strings.HasPrefix(line, "|"):
			cells = strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
			if columns == nil {
				columns = cells
			}
			for i := 1; i < len(cells) && i < len(columns); i++ {
				if err := o.add(file, ref{strings.TrimSpace(columns[i]), strings.TrimSpace(cells[0])}, cells[i]); err != nil {
					return err
				}
			}
			continue
		case strings.HasPrefix(line, "Benchmark"):
			if err := o.readBenchmark(file, strings.Fields(line)); err != nil {
				return err
			}
		case !strings.HasPrefix(line, " "):
			section = cells[0]
		case len(cells) > 1:
			if err := o.add(file, ref{section, cells[0]}, cells[1]); err != nil {
				return err
			}
		}
		columns = nil
	}
	return nil
}

// readBenchmark reads a line of go test -bench: name with the number of processors, rounds, and pairs of value and
// unit.
func (o outputs) readBenchmark(file string, fields []string) error {
	name := processors.ReplaceAllString(fields[0], "")
	for i := 2; i+1 < len(fields); i += 2 {
		if err := o.add(file, ref{name, fields[i+1]}, fields[i]); err != nil {
			return err
		}
	}
	return nil
}

// add notes a cell that is a figure or a target. All other cells are ignored.
func (o outputs) add(file string, r ref, cell string) error {
	cell = strings.TrimSpace(cell)
	text := number.FindString(cell)
	if m := target.FindStringSubmatch(cell); m != nil {
		r.section, text = "targets", m[1]
	}
	if text == "" {
		return nil
	}
	if before, ok := o.figures[r]; ok && before.file != file {
		return fmt.Errorf("%s and %s have both %q of %q: delete the older run", before.file, file, r.name, r.section)
	}
	n, _ := strconv.ParseFloat(text, 64) // only digits and a point
	o.figures[r] = value{number: n, text: text, file: file}
	return nil
}

// find returns the one figure that matches r, and its full name.
func (o outputs) find(r ref) (string, value, error) {
	var names []string
	var found value
	for f, v := range o.figures {
		if ok, _ := path.Match(r.name, f.name); f.section == r.section && (ok || f.name == r.name) {
			names, found = append(names, f.name), v
		}
	}
	if len(names) != 1 {
		return "", value{}, fmt.Errorf("%d figures match %q of %q: add the output of a run that measures it", len(names), r.name, r.section)
	}
	return names[0], found, nil
}
