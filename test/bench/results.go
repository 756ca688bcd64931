package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/hawser-io/hawser/internal/local/fleet"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// results holds one value per round for each figure. Times are in milliseconds, rates per second, memory in MiB.
type results struct {
	fdatasync, echoRTT, echo64 sample
	publish1, publish64        sample
	delivered50, delivered99   sample
	deliver100, deliver3000    sample
	apply50, apply99           sample
	stored50, stored99         sample
	perSession                 float64 // KiB
	rss                        map[string]float64

	// The figures of many works.
	cold, writing, bare    sample // seconds
	coldRequests           int
	warm                   start
	repaired50, repaired99 sample
	reported50, reported99 sample
	restRequests           float64 // per minute, counted
	worksMemory            float64

	// The figures of gRPC, MQTT, and MQTT through Mosquitto.
	roads []*road

	// The figures of joined clusters at rest.
	hubRequests float64 // per second, without writes of Leases

	// parts reports whether a part was measured.
	parts func(part string) bool
}

func (r *results) write(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(cells ...string) { fmt.Fprintln(t, strings.Join(cells, "\t")) }
	if r.parts(partCore) {
		r.writeCore(row)
	}
	if r.parts(partWorks) {
		r.writeWorks(row)
	}
	if r.parts(partMQTT) {
		r.writeRoads(row)
	}
	row("targets", "", "")
	for _, g := range r.goals() {
		row("  "+g.name, g.text(), g.result())
	}
	_ = t.Flush() // the terminal may have been closed
}

func (r *results) writeCore(row func(...string)) {
	row("limits of this machine", "", "")
	row("  fdatasync of 4 KiB", r.fdatasync.text("%.3f"), "ms")
	row("  gRPC echo, 4 KiB in, TLS, one caller", r.echoRTT.text("%.3f"), "ms p50")
	row("  gRPC echo, 64 callers", r.echo64.text("%.0f"), "calls/s")
	row("broker", "", "")
	row("  durable publishes, 1 publisher", r.publish1.text("%.0f"), "works/s of 4 KiB")
	row("  durable publishes, 64 publishers", r.publish64.text("%.0f"), "works/s of 4 KiB")
	row("  publish → delivered p50", r.delivered50.text("%.3f"), "ms")
	row("  publish → delivered p99", r.delivered99.text("%.3f"), "ms")
	row("  deliveries, 100 sessions", r.deliver100.text("%.0f"), "deliveries/s, closed loop of 64")
	row("  deliveries, 3,000 sessions", r.deliver3000.text("%.0f"), "deliveries/s, closed loop of 64")
	row("  memory per session", fmt.Sprintf("%.0f", r.perSession), "KiB, at 3,000 sessions")
	row("hub to cluster and back", "", "")
	row("  start of kubectl apply → Applied p50", r.apply50.text("%.0f"), "ms")
	row("  start of kubectl apply → Applied p99", r.apply99.text("%.0f"), "ms")
	row("  stored on the hub → Applied p50", r.stored50.text("%.0f"), "ms")
	row("  stored on the hub → Applied p99", r.stored99.text("%.0f"), "ms")
	row("resident memory when idle", "", "")
	for _, name := range slices.Sorted(maps.Keys(r.rss)) {
		row("  "+name, fmt.Sprintf("%.0f", r.rss[name]), "MiB")
	}
}

func (r *results) writeWorks(row func(...string)) {
	row(fmt.Sprintf("%d works of %d manifests on one cluster", workCount, manifestsPerWork), "", "")
	row("  changed object → repaired p50", r.repaired50.text("%.0f"), "ms")
	row("  changed object → repaired p99", r.repaired99.text("%.0f"), "ms")
	row("  changed status → value on the hub p50", r.reported50.text("%.0f"), "ms")
	row("  changed status → value on the hub p99", r.reported99.text("%.0f"), "ms")
	row("  start with nothing applied → all applied", r.cold.text("%.1f"), "s")
	row("  its writes, without hub-source", r.writing.text("%.1f"), fmt.Sprintf("s, with %d requests", r.coldRequests))
	row("  as many requests by a bare client", r.bare.text("%.1f"), fmt.Sprintf("s, %d in flight", kubeclient.DefaultInFlight))
	row("  start with all applied → all looked at", fmt.Sprintf("%.1f", r.warm.took.Seconds()), fmt.Sprintf("s, with %d requests", r.warm.requests))
	row("  memory of the agent", fmt.Sprintf("%.0f", r.worksMemory), "MiB")
	row("  requests at rest, watches aside", fmt.Sprintf("%.1f", r.restRequests), "a minute, counted in the audit log")
	row("  and the hourly look at everything", fmt.Sprintf("%.1f", hourlyReads()), "a minute, computed")
	row("  an agent that polls every 10 s, as OCM's", fmt.Sprintf("%.0f", polledReads()), "a minute, computed: 0.069 reads/s a manifest")
}

func (r *results) writeRoads(row func(...string)) {
	for _, w := range r.roads {
		row("over "+w.name+", one connection of a source", "", "")
		row("  publishes, 1 in flight", w.publish1.text("%.0f"), "works/s of 4 KiB")
		row("  publishes, 64 in flight", w.publish64.text("%.0f"), "works/s of 4 KiB")
		row("  publish → delivered p50", w.delivered50.text("%.3f"), "ms")
		row("  deliveries, 3,000 sessions", w.deliver3000.text("%.0f"), "deliveries/s, closed loop of 64")
		row("  memory per session that has just come", fmt.Sprintf("%.0f", w.opened), "KiB, at 3,000 sessions")
		row("  memory per idle session", fmt.Sprintf("%.0f", w.perSession), "KiB, at 3,000 sessions")
	}
}

// roadGoals returns the targets that compare MQTT at the Hawser broker with gRPC.
func (r *results) roadGoals() []goal {
	grpc, mqtt := r.roads[0], r.roads[1]
	return []goal{
		{name: "publishes with 1 in flight, MQTT : gRPC", got: ratios(mqtt.publish1, grpc.publish1).median(), want: 0.8},
		{name: "publishes with 64 in flight, MQTT : gRPC", got: ratios(mqtt.publish64, grpc.publish64).median(), want: 0.8},
		{name: "publish → delivered p50, MQTT : gRPC", got: ratios(mqtt.delivered50, grpc.delivered50).median(), want: 1.2, atMost: true},
		{name: "deliveries at 3,000 sessions, MQTT : gRPC", got: ratios(mqtt.deliver3000, grpc.deliver3000).median(), want: 0.8},
		{name: "memory per idle MQTT session, KiB", got: mqtt.perSession, want: 40, atMost: true},
	}
}

// hourlyReads returns the requests per minute with which the agent reads every object and AppliedManifestWork
// once in 60 to 90 minutes.
func hourlyReads() float64 { return workCount * (manifestsPerWork + 1) / lookAgain.Minutes() }

// polledReads returns the computed reads per minute of OCM's agent.
func polledReads() float64 { return workCount * manifestsPerWork * ocmReadsPerManifest * 60 }

// goal is a target: got must be at least want, or at most want if atMost is true.
type goal struct {
	name      string
	got, want float64
	atMost    bool
}

func (g goal) met() bool {
	if g.atMost {
		return g.got <= g.want
	}
	return g.got >= g.want
}

func (g goal) relation() string {
	if g.atMost {
		return "≤"
	}
	return "≥"
}

func (g goal) text() string { return fmt.Sprintf("%.2f %s %.2f", g.got, g.relation(), g.want) }

func (g goal) result() string {
	if g.met() {
		return "met"
	}
	return "MISSED"
}

func (r *results) goals() []goal {
	var gs []goal
	if r.parts(partCore) {
		gs = r.coreGoals()
	}
	if r.parts(partWorks) {
		gs = append(gs, r.worksGoals()...)
	}
	if r.parts(partMQTT) {
		gs = append(gs, r.roadGoals()...)
	}
	if r.parts(partRegistration) {
		gs = append(gs, goal{name: "requests to the hub a second at rest, writes of Leases aside", got: r.hubRequests, want: maxHubRequests, atMost: true})
	}
	return gs
}

func (r *results) worksGoals() []goal {
	return []goal{
		{name: "start with nothing applied, s", got: r.cold.median(), want: 6, atMost: true},
		{name: "bare client : writes of that start", got: ratios(r.bare, r.writing).median(), want: 0.7},
		{name: "start with all applied, s", got: r.warm.took.Seconds(), want: 3, atMost: true},
		{name: "changed object → repaired p50, ms", got: r.repaired50.median(), want: 500, atMost: true},
		{name: "changed status → value on the hub p50, ms", got: r.reported50.median(), want: 500, atMost: true},
		{name: fmt.Sprintf("memory of the agent with %d works, MiB", workCount), got: r.worksMemory, want: 120, atMost: true},
		{name: "requests at rest a minute, hourly look included", got: r.restRequests + hourlyReads(), want: 60, atMost: true},
	}
}

func (r *results) coreGoals() []goal {
	var latencyLimit sample
	for i := range r.fdatasync {
		latencyLimit = append(latencyLimit, r.fdatasync[i]+2*r.echoRTT[i]+1)
	}
	gs := []goal{
		{name: "publishes at 64 : echo at 64", got: ratios(r.publish64, r.echo64).median(), want: 0.4},
		{name: "deliveries at 3,000 : at 100", got: ratios(r.deliver3000, r.deliver100).median(), want: 0.8},
		{name: "publish → delivered p50 : fdatasync + 2 echoes + 1 ms", got: ratios(r.delivered50, latencyLimit).median(), want: 1, atMost: true},
		{name: "kubectl apply → Applied p50, ms", got: r.apply50.median(), want: 300, atMost: true},
	}
	for _, name := range slices.Sorted(maps.Keys(r.rss)) {
		switch {
		case name == fleet.Broker:
			gs = append(gs, goal{name: "memory of broker, MiB", got: r.rss[name], want: 80, atMost: true})
		case strings.HasPrefix(name, "agent-"):
			gs = append(gs, goal{name: "memory of " + name + ", MiB", got: r.rss[name], want: 60, atMost: true})
		}
	}
	return gs
}

func (r *results) check() error { return checkGoals(r.goals()) }

// checkGoals returns an error that names every missed target.
func checkGoals(goals []goal) error {
	var errs []error
	for _, g := range goals {
		if !g.met() {
			errs = append(errs, fmt.Errorf("%s: %.2f, want %s %.2f", g.name, g.got, g.relation(), g.want))
		}
	}
	return errors.Join(errs...)
}
