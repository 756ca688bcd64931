package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// writeMarkdown writes a table for a closing note. The first row is the head.
func writeMarkdown(w io.Writer, rows [][]string) {
	width := make([]int, len(rows[0]))
	for _, r := range rows {
		for i, cell := range r {
			width[i] = max(width[i], 3, utf8.RuneCountInString(cell))
		}
	}
	for n, r := range rows {
		var line strings.Builder
		for i, cell := range r {
			fmt.Fprintf(&line, "| %s%s ", cell, strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell)))
		}
		fmt.Fprintln(w, line.String()+"|")
		if n == 0 {
			line.Reset()
			for _, n := range width {
				line.WriteString("|" + strings.Repeat("-", n+2))
			}
			fmt.Fprintln(w, line.String()+"|")
		}
	}
	fmt.Fprintln(w)
}

// writeGoals writes each target, and whether it is met.
func writeGoals(w io.Writer, goals []goal) {
	rows := [][]string{{"target", "", ""}}
	for _, g := range goals {
		rows = append(rows, []string{g.name, g.text(), g.result()})
	}
	writeMarkdown(w, rows)
}
