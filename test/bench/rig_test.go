package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestArrived_IsSorted(t *testing.T) {
	got := arrived(cost{cpu: 2, allocs: 300}, []time.Duration{5, 9, 1, 3, 2})
	if got.median != 3 || got.last != 9 {
		t.Errorf("got %+v", got)
	}
	if c := got.per(100); c.cpu != 0.02 || c.allocs != 3 || c.microseconds() != 20000 {
		t.Errorf("per agent: %+v", c)
	}
	if c := got.minus(cost{cpu: 1, allocs: 100}); c != (cost{1, 200}) {
		t.Errorf("minus: %+v", c)
	}
}

func TestProtocolOf(t *testing.T) {
	for text, want := range map[string]int{"package transport\n": 1, "// Protocol is\nconst Protocol = 2\n": 2} {
		if got := protocolOf([]byte(text)); got != want {
			t.Errorf("%q: got %d", text, got)
		}
	}
}

func TestAsBefore_RenamesTheHandler(t *testing.T) {
	const text = "\t\tHandler: a,\n"
	if got := asBefore([]byte(text), []byte("package session\ntype Client interface {")); string(got) != "\t\tClient: a,\n" {
		t.Errorf("got %q", got)
	}
	if got := asBefore([]byte(text), []byte("type Handler interface {")); string(got) != text {
		t.Errorf("got %q", got)
	}
}

func TestWriteMarkdown(t *testing.T) {
	var b strings.Builder
	writeMarkdown(&b, [][]string{{"", "now"}, {"µs per publish", "5"}})
	const want = "|                | now |\n|----------------|-----|\n| µs per publish | 5   |\n\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
}

// TestGate_ComparesWithTheCommittedTable: a ratio above its limit is missed, and each row must be measured.
func TestGate_ComparesWithTheCommittedTable(t *testing.T) {
	limits, err := parseLimits([]byte("# a comment\n\nprocessor\t1.2\nallocations\t1.05\n"))
	if diff := cmp.Diff([]limit{{"processor", 1.2}, {"allocations", 1.05}}, limits, cmp.AllowUnexported(limit{})); diff != "" || err != nil {
		t.Fatal(diff, err)
	}
	before := map[string]sample{"processor": {100, 200}, "allocations": {100, 100}}
	now := map[string]sample{"processor": {110, 240}, "allocations": {106, 106}}
	rows, goals, err := gateTable("abc", limits, before, now)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"processor", "150", "175", "1.15 [1.10–1.20]", "1.20", "met"}, rows[1]); diff != "" {
		t.Error(diff)
	}
	if err := checkGoals(goals); err == nil || !strings.HasPrefix(err.Error(), "allocations: 1.06, want ≤ 1.05") {
		t.Errorf("got %v", err)
	}
	delete(now, "processor")
	if _, _, err := gateTable("abc", limits, before, now); err == nil {
		t.Error("a row without a figure passes")
	}
	for _, text := range []string{"processor", "processor\tfast"} {
		if _, err := parseLimits([]byte(text)); err == nil {
			t.Errorf("%q is read", text)
		}
	}
	if all, err := parseLimits(gateText); err != nil || len(all) != 8 {
		t.Errorf("the committed table: %d rows, %v", len(all), err)
	}
}

// TestFleetGoals: the last agent counts beside the median agent of the commit of comparison, and other figures beside
// the same figure of that commit.
func TestFleetGoals(t *testing.T) {
	at := func(cpu, median, last float64) arrivals {
		return arrivals{cost: cost{cpu: cpu}, median: time.Duration(median * 1e9), last: time.Duration(last * 1e9)}
	}
	before := fleetFigures{publish: cost{cpu: 2}, cold: at(10, 10, 12), killed: at(10, 8, 12), stopped: at(10, 10, 12)}
	now := fleetFigures{publish: cost{cpu: 1.9}, cold: at(9, 8, 10), killed: at(1.2, 8, 10.1), stopped: at(1.3, 9, 11)}
	var missed []string
	for _, g := range fleetGoals(before, now, size{agents: 1000, works: 1}) {
		if !g.met() {
			missed = append(missed, g.name)
		}
	}
	want := []string{"restart after a kill, last agent now : median agent before", "restart after SIGTERM, time, now : before", "processor per agent that returns after SIGTERM, ms"}
	if diff := cmp.Diff(want, missed); diff != "" {
		t.Error(diff)
	}
}

// TestReplicaGoals: the quiet p99 does not count as a delay of the rolling restart, and the longest drain decides.
func TestReplicaGoals(t *testing.T) {
	f := replicaFigures{
		killed: arrivals{last: 16 * time.Second}, quiet: publishTimes{p99: time.Second}, restart: publishTimes{p99: 4 * time.Second},
		stops: []time.Duration{time.Second, 3 * time.Second, 2 * time.Second},
	}
	var missed []string
	for _, g := range f.goals() {
		if !g.met() {
			missed = append(missed, g.name)
		}
	}
	if diff := cmp.Diff([]string{"clients of a killed broker in sync elsewhere, s"}, missed); diff != "" {
		t.Error(diff)
	}
	f.restart.p99 += time.Millisecond
	if f.goals()[1].met() {
		t.Error("a delay longer than the longest drain meets the target")
	}
}
