package main

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"strings"
)

// The sizes of a picture in pixels: the column with the names ends at left, the scale is wide, and the values follow.
const (
	width, left, wide = 860, 370, 290
	barStep, barHigh  = 24, 14
	top               = 44
)

// bar is one row of a picture. A bar without a ratio is the heading of the following ones.
type bar struct {
	name, color string
	ratio       float64
	limit       float64 // the target, or 0
	text        string  // the measured values
}

// picture is a chart of horizontal bars from 0, or with a logarithmic scale from the power of ten below the least.
type picture struct {
	title, axis string
	logarithmic bool
	bars        []bar
	notes       []string
}

// scale returns the positions of the marks of the axis, and where a ratio lies between 0 and 1.
func (p picture) scale() (marks []float64, at func(float64) float64) {
	least, most := 1.0, 1.0
	for _, b := range p.bars {
		most = max(most, b.ratio, b.limit)
		if b.ratio > 0 {
			least = min(least, b.ratio)
		}
	}
	if p.logarithmic {
		from, to := math.Floor(math.Log10(least)-0.01), math.Ceil(math.Log10(most))
		for e := from; e <= to; e++ {
			marks = append(marks, math.Pow(10, e))
		}
		return marks, func(r float64) float64 { return (math.Log10(r) - from) / (to - from) }
	}
	step := math.Pow(10, math.Floor(math.Log10(most)))
	for _, part := range []float64{0.1, 0.2, 0.5, 1, 2} {
		if most/(step*part) <= 6 {
			step *= part
			break
		}
	}
	n := math.Ceil(most / step)
	for i := 0.0; i <= n; i++ {
		marks = append(marks, i*step)
	}
	return marks, func(r float64) float64 { return r / (n * step) }
}

// svg draws the picture on white, so that it is readable on a dark page too.
func (p picture) svg() []byte {
	var b bytes.Buffer
	bottom := top + len(p.bars)*barStep + 4
	height := bottom + 66 + 15*len(p.notes)
	put := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	text := func(x, y int, style, s string) {
		put(`<text x="%d" y="%d" %s>%s</text>`, x, y, style, html.EscapeString(s))
	}
	put(`<svg xmlns="http://www.w3.org/2000/svg" width="%[1]d" height="%[2]d" viewBox="0 0 %[1]d %[2]d" font-family="Helvetica,Arial,sans-serif" font-size="12" fill="#1c2024" role="img" aria-label="%[3]s">`, width, height, html.EscapeString(p.title))
	put(`<rect width="%d" height="%d" fill="#ffffff"/>`, width, height)
	text(12, 24, `font-size="15" font-weight="bold"`, p.title)
	marks, at := p.scale()
	x := func(ratio float64) int { return left + int(math.Round(at(ratio)*wide)) }
	for _, m := range marks {
		put(`<path d="M%d %dV%d" stroke="#d9dde1"/>`, x(m), top-6, bottom)
		text(x(m), bottom+14, `text-anchor="middle"`, rounded(m, 6))
	}
	text(left+wide/2, bottom+30, `text-anchor="middle"`, p.axis)
	for i, r := range p.bars {
		y := top + i*barStep
		if r.ratio == 0 {
			text(12, y+12, `font-weight="bold"`, r.name)
			continue
		}
		text(left-8, y+12, `text-anchor="end"`, r.name)
		put(`<rect x="%d" y="%d" width="%d" height="%d" fill="%s"/>`, left, y, max(1, x(r.ratio)-left), barHigh, r.color)
		if r.limit > 0 {
			put(`<path d="M%d %dv%d" stroke="#c4320a" stroke-width="3"/>`, x(r.limit), y-3, barHigh+6)
		}
		text(left+wide+12, y+12, "", r.text)
	}
	put(`<path d="M%d %dV%d" stroke="#1c2024" stroke-dasharray="4 3"/>`, x(1), top-6, bottom)
	text(12, bottom+52, `fill="#5b646d"`, p.legend())
	for i, n := range p.notes {
		text(12, bottom+67+15*i, `fill="#5b646d"`, n)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

func (p picture) legend() string {
	parts := []string{"dashed: the reference, 1"}
	for _, b := range p.bars {
		if b.limit > 0 {
			parts = append(parts, "red mark: the target")
			break
		}
	}
	return strings.Join(append(parts, "blue: Hawser, grey: a limit, orange: others"), "; ")
}
