package registration

import (
	"fmt"
	"testing"
	"time"
)

// At most one write per period and cluster, with the last renewal.
func TestRenewals_OnePerPeriod(t *testing.T) {
	var r renewals
	start := time.Unix(1000, 0)
	now := start
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	r.renew(now, "c", now, at(-100), time.Minute)
	if c, renewed, _, ok := r.next(now); !ok || c != "c" || !renewed.Equal(now) {
		t.Fatalf("first renewal: %v %v", ok, renewed)
	}
	for s := 1; s < 60; s++ { // an agent that renews each second
		now = at(s)
		r.renew(now, "c", now, at(-100), time.Minute)
		if _, _, wait, ok := r.next(now); ok || wait != at(60).Sub(now) {
			t.Fatalf("after %d s: %v, wait %v", s, ok, wait)
		}
	}
	if _, renewed, _, ok := r.next(at(60)); !ok || !renewed.Equal(at(59)) {
		t.Errorf("after a period: %v, renewed %v, want the last one", ok, renewed)
	}
	if _, _, wait, ok := r.next(at(61)); ok || wait != 0 {
		t.Errorf("nothing was renewed since: %v", ok)
	}
	// The same renewal again, or an earlier one, is no renewal.
	r.renew(at(62), "c", at(59), at(-100), time.Minute)
	if _, _, _, ok := r.next(at(200)); ok {
		t.Error("a renewal was written twice")
	}
}

// The renewal on the hub is used before the first write: another replica wrote it.
func TestRenewals_GoOnFromTheHub(t *testing.T) {
	var r renewals
	now := time.Unix(1000, 0)
	r.renew(now, "c", now, now.Add(-10*time.Second), time.Minute)
	if _, _, wait, ok := r.next(now); ok || wait != 50*time.Second {
		t.Errorf("written 10 s ago: %v, wait %v", ok, wait)
	}
}

// A renewal time on the hub ahead of the clock is ignored, because a wrong clock wrote it. Otherwise no renewal
// would be written until that time.
func TestRenewals_AheadOfTheClock(t *testing.T) {
	var r renewals
	now := time.Unix(1000, 0)
	r.renew(now, "c", now, now.Add(time.Hour), time.Minute)
	if c, renewed, wait, ok := r.next(now); !ok || c != "c" || !renewed.Equal(now) {
		t.Fatalf("%v %q, renewed %v, wait %v; want it at once", ok, c, renewed, wait)
	}
	now = now.Add(10 * time.Second) // the informer has not shown the written renewal yet
	r.renew(now, "c", now, now.Add(time.Hour), time.Minute)
	if _, _, wait, ok := r.next(now); ok || wait != 50*time.Second {
		t.Errorf("written 10 s ago: %v, wait %v", ok, wait)
	}
}

// A renewal that is five periods old is not written. The hub would take the agent's clock for wrong, or the
// cluster for alive.
func TestRenewals_OldOnesAreDropped(t *testing.T) {
	var r renewals
	now := time.Unix(1000, 0)
	r.renew(now, "late", now.Add(-300*time.Second), now.Add(-time.Hour), time.Minute)
	r.renew(now, "just", now.Add(-299*time.Second), now.Add(-time.Hour), time.Minute)
	c, _, _, ok := r.next(now)
	if !ok || c != "just" {
		t.Fatalf("%v %q", ok, c)
	}
	if c, _, _, ok := r.next(now); ok {
		t.Errorf("%s was written", c)
	}
	// A new renewal of the same cluster is written.
	r.renew(now, "late", now, now.Add(-time.Hour), time.Minute)
	if c, _, _, ok := r.next(now); !ok || c != "late" {
		t.Errorf("a new renewal: %v %q", ok, c)
	}
}

// After an outage the Leases of 10,000 clusters are due. They are written evenly within a minute, and none is
// too old by then.
func TestRenewals_SpreadAnOutage(t *testing.T) {
	var r renewals
	now := time.Unix(1000, 0)
	start := now
	for i := range 10_000 {
		r.renew(now, fmt.Sprint(i), now.Add(-time.Duration(i%75)*time.Second), now.Add(-time.Hour), time.Minute)
	}
	written, most := 0, 0
	for second := 0; written < 10_000 && second < 120; second++ {
		inSecond := 0
		for end := now.Add(time.Second); now.Before(end); {
			_, renewed, wait, ok := r.next(now)
			if ok {
				if age := now.Sub(renewed); age >= 5*time.Minute {
					t.Fatalf("written with age %v", age)
				}
				inSecond++
				continue
			}
			if wait <= 0 {
				now = end
				break
			}
			now = now.Add(wait)
		}
		written, most = written+inSecond, max(most, inSecond)
	}
	if took := now.Sub(start); written != 10_000 || took > time.Minute || most > 400 {
		t.Errorf("%d written in %v, at most %d in a second", written, took, most)
	}
}

// A failed write is retried, unless the renewal was forgotten.
func TestRenewals_FailuresAndEnds(t *testing.T) {
	var r renewals
	now := time.Unix(1000, 0)
	for _, c := range []string{"a", "b", "c"} {
		r.renew(now, c, now, now.Add(-time.Hour), time.Minute)
	}
	r.forget("b")
	for range 2 {
		if c, _, _, ok := r.next(now); !ok || c == "b" {
			t.Fatalf("%v %q", ok, c)
		}
	}
	r.failed(now, "a")
	r.failed(now, "b")
	if c, _, wait, ok := r.next(now); ok || wait != retryLease {
		t.Errorf("at once: %v %q, wait %v", ok, c, wait)
	}
	if c, _, _, ok := r.next(now.Add(retryLease)); !ok || c != "a" {
		t.Errorf("later: %v %q", ok, c)
	}
	if len(r.clusters) != 2 {
		t.Errorf("%d clusters are known", len(r.clusters))
	}
}
