package registration

import (
	"fmt"
	"testing"
	"time"
)

// A second renewal is written when it arrives, a single one when the next one is late.
func TestRenewals_DueAt(t *testing.T) {
	for _, c := range []struct {
		name                   string
		written, renewed, want time.Duration
		period                 time.Duration
	}{
		{"never written", -1000 * time.Hour, 0, -1000*time.Hour + 2*time.Minute, time.Minute},
		{"the next renewal", 0, 60 * time.Second, 150 * time.Second, time.Minute},
		{"the next renewal, late", 0, 104 * time.Second, 194 * time.Second, time.Minute},
		{"the second renewal", 0, 120 * time.Second, 120 * time.Second, time.Minute},
		{"the second renewal, late", 0, 150 * time.Second, 120 * time.Second, time.Minute},
		{"the second renewal, early", 0, 105 * time.Second, 120 * time.Second, time.Minute},
		{"another period", 0, 10 * time.Second, 25 * time.Second, 10 * time.Second},
		{"another period, the second renewal", 0, 21 * time.Second, 20 * time.Second, 10 * time.Second},
	} {
		start := time.Unix(1e7, 0)
		if got := dueAt(start.Add(c.written), start.Add(c.renewed), c.period).Sub(start); got != c.want {
			t.Errorf("%s: due at %v, want %v", c.name, got, c.want)
		}
	}
}

// An agent that renews each second has its Lease written once in two periods, with the last renewal.
func TestRenewals_OneInTwoPeriods(t *testing.T) {
	var r renewals
	start := time.Unix(1000, 0)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	r.renew(start, "c", start, at(-120), time.Minute)
	if c, renewed, _, ok := r.next(start); !ok || c != "c" || !renewed.Equal(start) {
		t.Fatalf("first renewal: %v %v", ok, renewed)
	}
	for s := 1; s < 120; s++ {
		r.renew(at(s), "c", at(s), start, time.Minute)
		if _, _, wait, ok := r.next(at(s)); ok || s >= 105 && wait != at(120).Sub(at(s)) {
			t.Fatalf("after %d s: %v, wait %v", s, ok, wait)
		}
	}
	if _, renewed, _, ok := r.next(at(120)); !ok || !renewed.Equal(at(119)) {
		t.Errorf("after two periods: %v, renewed %v, want the last one", ok, renewed)
	}
	if _, _, wait, ok := r.next(at(121)); ok || wait != 0 {
		t.Errorf("nothing was renewed since: %v", ok)
	}
	// The same renewal again, or an earlier one, is no renewal.
	r.renew(at(122), "c", at(119), at(119), time.Minute)
	if _, _, _, ok := r.next(at(900)); ok {
		t.Error("a renewal was written twice")
	}
}

// The renewal on the hub is used before the first write: another replica wrote it. It is used again one period
// after a write: the hub may be restored.
func TestRenewals_GoOnFromTheHub(t *testing.T) {
	var r renewals
	now := time.Unix(1000, 0)
	r.renew(now, "c", now, now.Add(-110*time.Second), time.Minute)
	if _, _, wait, ok := r.next(now); ok || wait != 10*time.Second {
		t.Errorf("renewed 110 s before: %v, wait %v", ok, wait)
	}
	now = now.Add(10 * time.Second)
	if _, _, _, ok := r.next(now); !ok {
		t.Error("not written after two periods")
	}
	now = now.Add(59 * time.Second)
	r.renew(now, "c", now, now.Add(-time.Hour), time.Minute)
	if _, _, wait, ok := r.next(now); ok || wait != 90*time.Second {
		t.Errorf("the informer lags: %v, wait %v", ok, wait)
	}
	now = now.Add(time.Second)
	r.renew(now, "c", now, now.Add(-time.Hour), time.Minute)
	if _, _, _, ok := r.next(now); !ok {
		t.Error("the hub was restored, and the renewal is not written")
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
	if _, _, wait, ok := r.next(now); ok || wait != 90*time.Second {
		t.Errorf("written 10 s ago: %v, wait %v", ok, wait)
	}
}

// Without the broker all known renewals are written at once, and not when the next one is late.
func TestRenewals_Hasten(t *testing.T) {
	var r renewals
	now := time.Unix(1000, 0)
	r.renew(now, "c", now, now.Add(-time.Minute), time.Minute)
	r.renew(now, "same", now, now, time.Minute)
	if _, _, wait, ok := r.next(now); ok || wait != 90*time.Second {
		t.Fatalf("%v, wait %v", ok, wait)
	}
	r.hasten(now)
	if c, renewed, _, ok := r.next(now); !ok || c != "c" || !renewed.Equal(now) {
		t.Errorf("%v %q, renewed %v", ok, c, renewed)
	}
	if c, _, wait, ok := r.next(now); ok || wait != 0 {
		t.Errorf("%q is written again", c)
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
	r.failed(now, "a", now.Add(-time.Hour))
	r.failed(now, "b", now.Add(-time.Hour))
	if c, _, wait, ok := r.next(now); ok || wait != retryLease {
		t.Errorf("at once: %v %q, wait %v", ok, c, wait)
	}
	r.renew(now.Add(time.Second), "a", now.Add(time.Second), now.Add(-time.Hour), time.Minute)
	r.hasten(now.Add(time.Second))
	if c, _, wait, ok := r.next(now.Add(time.Second)); ok || wait != retryLease-time.Second {
		t.Errorf("renewed meanwhile: %v %q, wait %v", ok, c, wait)
	}
	if c, _, _, ok := r.next(now.Add(retryLease)); !ok || c != "a" {
		t.Errorf("later: %v %q", ok, c)
	}
	if len(r.clusters) != 2 {
		t.Errorf("%d clusters are known", len(r.clusters))
	}
}
