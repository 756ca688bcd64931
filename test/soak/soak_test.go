package main

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-io/hawser/test/consistency"
)

func TestPlan_KillsInStormsAndRestsBesideTheWindows(t *testing.T) {
	p, err := newPlan(10 * time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		at            time.Duration
		stormy, quiet bool
	}{
		{0, true, false},
		{44 * time.Second, true, false},
		{45 * time.Second, false, true},
		{2*time.Minute + 59*time.Second, false, true},
		{3 * time.Minute, false, false},
		{8*time.Minute + 29*time.Second, false, false},
		{8*time.Minute + 30*time.Second, false, true},
		{9*time.Minute + 59*time.Second, false, true},
		{10 * time.Minute, true, false},
		{11*time.Minute + 29*time.Second, true, false},
		{11*time.Minute + 30*time.Second, false, false},
	} {
		if p.stormy(tc.at) != tc.stormy || p.quiet(tc.at) != tc.quiet {
			t.Errorf("at %s: stormy %v, quiet %v", tc.at, p.stormy(tc.at), p.quiet(tc.at))
		}
	}
	if _, err := newPlan(shortest - 1); err == nil {
		t.Error("a run that can show nothing is accepted")
	}
}

func TestPlan_SameSeedSameFaults(t *testing.T) {
	draw := func(seed uint64, part string) []event {
		r := random(seed, part)
		var all []event
		for range 50 {
			all = append(all, nextFault(r), nextRestart(r))
		}
		return all
	}
	if !slices.Equal(draw(7, "broker"), draw(7, "broker")) {
		t.Error("a seed gives different faults")
	}
	if slices.Equal(draw(7, "broker"), draw(8, "broker")) || slices.Equal(draw(7, "broker"), draw(7, "agent")) {
		t.Error("another seed or part has the same faults")
	}
	seen := map[fault]bool{}
	for _, e := range draw(7, "broker") {
		seen[e.fault] = true
		if e.after <= 0 || e.last <= 0 || e.fault == pause && e.last > recovery {
			t.Errorf("event %+v", e)
		}
	}
	if len(seen) != 4 {
		t.Errorf("only %v happen", seen)
	}
}

const metrics = `# TYPE go_goroutines gauge
go_goroutines 42
process_open_fds 13
process_resident_memory_bytes 2.097152e+06
`

func TestFetch(t *testing.T) {
	body := metrics
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }))
	defer server.Close()
	got, err := fetch(t.Context(), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	if want := (sample{goroutines: 42, descriptors: 13, resident: 2 << 20}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for _, bad := range []string{"", strings.Replace(metrics, "42", "many", 1), strings.Replace(metrics, "process_open_fds", "other", 1)} {
		body = bad
		if _, err := fetch(t.Context(), server.URL); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// samples returns one sample per second of one process. value returns the values of each.
func samples(p plan, value func(at time.Duration) sample) series {
	var s series
	for at := time.Duration(0); at < p.end; at += time.Second {
		x := value(at)
		x.at = at
		s = append(s, x)
	}
	return s
}

func TestPlan_DetectsGrowth(t *testing.T) {
	p, err := newPlan(10 * time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	flat := sample{pid: 1, goroutines: 100, descriptors: 20, resident: 100}
	late := func(at time.Duration) bool { return at > p.judged/2 }
	for name, tc := range map[string]struct {
		value func(time.Duration) sample
		want  string // part of the error, "" for none
	}{
		"flat": {func(time.Duration) sample { return flat }, ""},
		"within the limits": {func(at time.Duration) sample {
			s := flat
			if late(at) {
				s.goroutines, s.descriptors, s.resident = 105, 24, 110
			}
			return s
		}, ""},
		"spikes": {func(at time.Duration) sample {
			s := flat
			if late(at) && at/time.Second%3 == 0 {
				s.goroutines = 1000
			}
			return s
		}, ""},
		"less": {func(at time.Duration) sample {
			s := flat
			if late(at) {
				s.resident = 10
			}
			return s
		}, ""},
		"goroutines": {func(at time.Duration) sample {
			s := flat
			if late(at) {
				s.goroutines = 106
			}
			return s
		}, "goroutines grew by 6.0 %"},
		"descriptors": {func(at time.Duration) sample {
			s := flat
			if late(at) {
				s.descriptors = 25
			}
			return s
		}, "descriptors grew by 25.0 %"},
		"memory": {func(at time.Duration) sample {
			s := flat
			s.resident += at.Seconds() / 10
			return s
		}, "resident MiB grew by"},
		"only the storms differ": {func(at time.Duration) sample {
			s := flat
			if p.stormy(at) {
				s.pid, s.resident = 2, 1000
			}
			return s
		}, ""},
		"another process": {func(at time.Duration) sample {
			s := flat
			if late(at) {
				s.pid = 2
			}
			return s
		}, "process 1 became process 2"},
	} {
		t.Run(name, func(t *testing.T) {
			growths, err := p.judge("broker", samples(p, tc.value))
			if err == nil {
				var out bytes.Buffer
				err = table(&out, growths)
				if lines := strings.Count(out.String(), "\n"); lines != 1+len(quantities) {
					t.Errorf("the table has %d lines:\n%s", lines, out.String())
				}
				if strings.Contains(out.String(), "TOO MUCH") != (tc.want != "") {
					t.Errorf("the table has a wrong mark TOO MUCH:\n%s", out.String())
				}
			}
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
	if _, err := p.judge("broker", nil); err == nil || !strings.Contains(err.Error(), "only 0 and 0 samples") {
		t.Errorf("without samples: %v", err)
	}
}

func TestWriter_KeepsItsWorksApart(t *testing.T) {
	w := writer{there: []consistency.Key{{Name: "a"}, {Name: "b"}, {Name: "c"}}}
	if k := move(&w.there, &w.away, 1); k.Name != "b" {
		t.Errorf("moved %s", k.Name)
	}
	if len(w.there) != 2 || w.there[0].Name != "a" || w.there[1].Name != "c" || len(w.away) != 1 {
		t.Errorf("there %v, away %v", w.there, w.away)
	}
}

func TestRest_EndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("over"))
	if rest(ctx) {
		t.Error("goes on after the end")
	}
}
