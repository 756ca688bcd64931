package main

import (
	"testing"
	"time"
)

func TestSample(t *testing.T) {
	s := sample{3, 1, 2, 9, 5}
	if s.median() != 3 || s.text("%.0f") != "3 [1–9]" {
		t.Errorf("got %v, %q", s.median(), s.text("%.0f"))
	}
	if (sample{1, 2}).median() != 1.5 {
		t.Error("median of two")
	}
	if r := ratios(sample{2, 9}, sample{4, 3}); r[0] != 0.5 || r[1] != 3 {
		t.Errorf("ratios %v", r)
	}
	ds := []time.Duration{5, 1, 4, 2, 3}
	if percentile(ds, 50) != 3 || percentile(ds, 99) != 5 || percentile(nil, 50) != 0 {
		t.Error("percentile")
	}
}

// TestCheck_LimitsIdleHubRequests: the idle cost of joined clusters on the hub has a target, if it was measured.
func TestCheck_LimitsIdleHubRequests(t *testing.T) {
	for _, c := range []struct {
		perSecond float64
		only      string
		missed    bool
	}{
		{maxHubRequests, partRegistration, false},
		{maxHubRequests + 1, partRegistration, true},
		{maxHubRequests + 1, "nothing", false},
	} {
		r := results{hubRequests: c.perSecond, parts: options{only: c.only}.measures}
		if err := r.check(); (err != nil) != c.missed {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if !(options{}).measures(partRegistration) {
		t.Error("the whole leaves clusters that join out")
	}
}
