package main

import (
	"fmt"
	"io/fs"
	"slices"
	"strconv"
)

// Colors of a bar.
const (
	hawser = "#2563ab"
	bound  = "#9aa3ab"
	peer   = "#d97a06"
)

// chart is a picture of figures, each as a ratio to another figure.
type chart struct {
	file, title, axis string
	logarithmic       bool
	rows              []row
}

// row is one bar, or a heading if it has only a name. An empty name is that of the figure of.
type row struct {
	name, color string
	of, to      ref
	limit       ref // of the table of targets; may be empty
}

// oldest is the commit of comparison of the part fleet.
const oldest = "ada167f"

// The sections of the tables.
const (
	limits  = "limits of this machine"
	broker  = "broker"
	works   = "200 works of 5 manifests on one cluster"
	targets = "targets"
)

var charts = []chart{
	{"fleet.svg", "Broker beside commit " + oldest + ", with one light fleet (less is better)", "ratio to " + oldest, false, []row{
		beside("processor per publish, µs", "processor per publish, now : before"),
		beside("memory after loading * works, MiB", ""),
		{"peak of the memory while loading, MiB", hawser, ref{"now", "its peak, MiB"}, ref{oldest, "its peak, MiB"}, ref{}},
		{"memory after loading and some rest, MiB", hawser, ref{"now", "memory some time later, MiB"}, ref{oldest, "memory some time later, MiB"}, ref{}},
		beside("cold start: all in sync, s", "cold start, time, now : before"),
		beside("cold start: processor, s", "cold start, processor, now : before"),
		beside("restart after a kill: all in sync, s", "restart after a kill, time, now : before"),
		beside("restart after a kill: processor, s", "restart after a kill, processor, now : before"),
		beside("restart after SIGTERM: all in sync, s", "restart after SIGTERM, time, now : before"),
		beside("restart after SIGTERM: processor, s", "restart after SIGTERM, processor, now : before"),
		beside("processor at rest, % of one", ""),
		beside("memory at rest, MiB", ""),
		{"one update in each of many clusters, p99, ms", hawser, ref{"now", "the same p99, ms"}, ref{oldest, "the same p99, ms"}, ref{}},
	}},
	{"publishes.svg", "Durable publishes and deliveries beside a bare gRPC echo (more is better)", "calls per second as ratio to the echo with 64 callers", false, []row{
		{"gRPC echo, 64 callers, nothing on disk", bound, ref{limits, "gRPC echo, 64 callers"}, ref{limits, "gRPC echo, 64 callers"}, ref{}},
		{"durable publishes, 64 publishers", hawser, ref{broker, "durable publishes, 64 publishers"}, ref{limits, "gRPC echo, 64 callers"}, ref{targets, "publishes at 64 : echo at 64"}},
		{"publishes until delivered, 100 sessions", hawser, ref{broker, "deliveries, 100 sessions"}, ref{limits, "gRPC echo, 64 callers"}, ref{}},
		{"publishes until delivered, 3,000 sessions", hawser, ref{broker, "deliveries, 3,000 sessions"}, ref{limits, "gRPC echo, 64 callers"}, ref{}},
	}},
	{"transports.svg", "Transports beside gRPC at Hawser's broker (more is better)", "per second, as ratio to gRPC", false, slices.Concat(
		over("publishes, 64 in flight", "publishes with 64 in flight, MQTT : gRPC"),
		over("deliveries, 3,000 sessions", "deliveries at 3,000 sessions, MQTT : gRPC"),
	)},
	{"postgres.svg", "Durable publishes with 64 in flight, by store (more is better)", "publishes per second, as ratio to the embedded store", false, []row{
		inStore("one broker, embedded store", embedded, ""),
		inStore("one broker over PostgreSQL", "PostgreSQL × 1", "publishes at 64, PostgreSQL × 1 : embedded store"),
		inStore("three brokers over PostgreSQL", "PostgreSQL × 3", ""),
		inStore("one broker, delays to PostgreSQL and its standby", "with delays", ""),
	}},
	{"memory.svg", "Memory of a broker for an idle session, of 3,000 with TLS (less is better)", "KiB, as ratio to Mosquitto", false, []row{
		idleSession("gRPC at Hawser's broker", hawser, "gRPC"),
		idleSession("MQTT at Hawser's broker", hawser, "MQTT"),
		idleSession("Mosquitto", peer, "Mosquitto"),
	}},
	{"works.svg", "1,000 objects of 200 works on one cluster beside a parallel client (more is better)", "speed, as ratio to a client that sends as many requests", false, []row{
		besideClient("parallel client, 20 requests in flight, s", bound, parallelClient, ""),
		besideClient("Hawser's agent, from its first write to its last, s", hawser, "its writes, without hub-source", "* : writes of that start"),
		besideClient("Hawser's agent, start → the hub has all as Applied, s", hawser, "start with nothing applied → all applied", ""),
	}},
	{"resume.svg", "An agent that lacks none of 10,000 works reconnects (less is better)", "processor time, as ratio to OCM's broker; logarithmic", true, []row{
		resume("OCM's broker, by version list, ms", peer, "ocm/list"),
		resume("Hawser's broker and agent, by version list, ms", hawser, "hawser/list"),
		resume("Hawser's broker and agent, by cursor, ms", hawser, "hawser/cursor"),
	}},
}

// beside is a figure of the part fleet beside that of the commit of comparison.
func beside(name, limit string) row {
	r := row{"", hawser, ref{"now", name}, ref{oldest, name}, ref{}}
	if limit != "" {
		r.limit = ref{targets, limit}
	}
	return r
}

// over is a figure of the part mqtt for each transport.
func over(name, limit string) []row {
	section := func(transport string) ref { return ref{"over " + transport + ", one connection of a source", name} }
	return []row{
		{name: name},
		{"gRPC", hawser, section("gRPC"), section("gRPC"), ref{}},
		{"MQTT", hawser, section("MQTT"), section("gRPC"), ref{targets, limit}},
		{"MQTT through Mosquitto, nothing on disk", peer, section("Mosquitto"), section("gRPC"), ref{}},
	}
}

// parallelClient is the figure of the part works that limits the agent.
const parallelClient = "as many requests by a *"

// besideClient is the time of that client beside a time of the agent.
func besideClient(name, color, time, limit string) row {
	r := row{name, color, ref{works, parallelClient}, ref{works, time}, ref{}}
	if limit != "" {
		r.limit = ref{targets, limit}
	}
	return r
}

// embedded is the column of the embedded store in the part postgres.
const embedded = "embedded store"

// inStore is the rate of publishes with a store beside that with the embedded one.
func inStore(name, store, limit string) row {
	const rate = "durable publishes a second, 64 in flight"
	r := row{name, hawser, ref{store, rate}, ref{embedded, rate}, ref{}}
	if limit != "" {
		r.limit = ref{targets, limit}
	}
	return r
}

// idleSession is the memory of an idle session beside that of Mosquitto.
func idleSession(name, color, transport string) row {
	section := func(transport string) ref {
		return ref{"over " + transport + ", one connection of a source", "memory per idle session"}
	}
	return row{name, color, section(transport), section("Mosquitto"), ref{}}
}

// resume is the processor time of a reconnect beside that of OCM's broker.
func resume(name, color, how string) row {
	return row{name, color, ref{"BenchmarkResume/" + how, "cpu-ms/op"}, ref{"BenchmarkResume/ocm/list", "cpu-ms/op"}, ref{}}
}

// drawAll returns the pictures by file name.
func drawAll(dir fs.FS) (map[string][]byte, error) {
	o, err := readOutputs(dir)
	if err != nil {
		return nil, err
	}
	pictures := map[string][]byte{}
	for _, c := range charts {
		p, err := c.picture(o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.file, err)
		}
		pictures[c.file] = p.svg()
	}
	return pictures, nil
}

// picture computes the ratios of a chart.
func (c chart) picture(o outputs) (picture, error) {
	p := picture{title: c.title, axis: c.axis, logarithmic: c.logarithmic}
	var files []string
	for _, r := range c.rows {
		b := bar{name: r.name, color: r.color}
		if r.of != (ref{}) {
			name, of, err := o.find(r.of)
			if err != nil {
				return p, err
			}
			_, to, err := o.find(r.to)
			if err != nil {
				return p, err
			}
			if to.number == 0 {
				return p, fmt.Errorf("%q of %q is 0: measure a larger fleet", r.to.name, r.to.section)
			}
			if b.name == "" {
				b.name = name
			}
			b.ratio = of.number / to.number
			b.text = fmt.Sprintf("%s (%s : %s)", short(b.ratio), of.text, to.text)
			files = append(files, of.file)
		}
		if r.limit != (ref{}) {
			_, limit, err := o.find(r.limit)
			if err != nil {
				return p, err
			}
			b.limit = limit.number
		}
		p.bars = append(p.bars, b)
	}
	slices.Sort(files)
	for _, file := range slices.Compact(files) {
		for _, line := range o.runs[file] {
			p.notes = append(p.notes, file+": "+line)
		}
	}
	return p, nil
}

// rounded returns a number with some significant digits, and without an exponent.
func rounded(n float64, digits int) string {
	n, _ = strconv.ParseFloat(strconv.FormatFloat(n, 'g', digits, 64), 64) // its own text
	return strconv.FormatFloat(n, 'f', -1, 64)
}

// short returns a ratio with two digits after the point, or two significant digits.
func short(ratio float64) string {
	if ratio < 0.01 {
		return rounded(ratio, 2)
	}
	return fmt.Sprintf("%.2f", ratio)
}
