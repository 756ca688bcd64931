//go:build linux

package attack

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

// The limits if times are not compared. The timeouts are long: a fleet that is served needs 100 ms, and a fleet
// that starves is never served.
const (
	// lasts is the shortest duration of an attack.
	lasts = 2 * time.Second
	// starves is the longest time until the first success of each cluster.
	starves = 10 * time.Second
	// fewest is the number of actions of one kind that may fail in an attack. Of more than 200 actions, 1 % may
	// fail.
	fewest = 2
)

// survive attacks the broker once. It fails the test if a cluster of the fleet starves, or if the broker uses
// too much memory or log.
func (s *stage) survive(name string) {
	s.t.Helper()
	r := s.raid(name, func(began time.Time) {
		enough := lasts
		if name == "outlive" { // the certificates must expire during the attack
			enough = max(enough, 2*time.Second+maxOutlive())
		}
		pause(s.t, enough)
		s.goesOn("under attack", began, s.wanted(name))
	})
	s.unharmed(r)
	s.goesOn("after the attack", r.ended, s.wanted(name))
	for _, what := range []string{"delivery", "status", "connect"} {
		if bad := tooMany(s.fleet.output(), what, r.began, r.ended); bad != "" {
			s.t.Error(bad)
		}
	}
}

// wanted are the successes that the test waits for. These are a delivery to each cluster and a status of each,
// a connection, and, if there is a hub, its answers. With the flood of works there are no statuses. Before the
// fleet reports, it publishes works of the flooded cluster, which wait with the flood.
func (s *stage) wanted(name string) []string {
	want := []string{"connect"}
	for i := range clusters {
		want = append(want, "delivery "+cluster(i))
		if name != "specflood" {
			want = append(want, "status "+cluster(i))
		}
	}
	if s.hub != nil {
		want = append(want, requestedCSRs...)
	}
	return want
}

// goesOn waits until all wanted actions had a success that began after since.
func (s *stage) goesOn(when string, since time.Time, want []string) {
	s.t.Helper()
	missing := ""
	ctx, cancel := context.WithTimeout(s.t.Context(), starves)
	defer cancel()
	_ = every(ctx, 20*time.Millisecond, func() error { // until all were served
		if missing = unserved(s.fleet.output(), since, want); missing == "" {
			return io.EOF
		}
		return nil
	})
	if missing != "" {
		s.t.Errorf("%s nothing went well for %v: %s", when, time.Since(since).Round(time.Millisecond), missing)
		return
	}
	s.t.Logf("%s all were served within %v", when, time.Since(since).Round(time.Millisecond))
}

// unserved names the wanted successes that are missing since a time.
func unserved(reported []outputLine, since time.Time, want []string) string {
	served := map[string]bool{}
	for _, l := range reported {
		if l.Took < givenUp && !l.At.Before(since) {
			served[l.What+" "+l.Of] = true
			served[l.What] = true
		}
	}
	return strings.Join(slices.DeleteFunc(slices.Clone(want), func(what string) bool { return served[what] }), ", ")
}

// tooMany returns a message if too many actions of a kind failed that began between two times. A timeout is a
// failure too.
func tooMany(reported []outputLine, what string, from, to time.Time) string {
	all, n, why := 0, 0, ""
	for _, l := range reported {
		if l.What != what || l.At.Before(from) || !l.At.Before(to) {
			continue
		}
		all++
		if l.Took >= givenUp {
			n, why = n+1, l.Text
		}
	}
	if n <= max(fewest, all/100) {
		return ""
	}
	return fmt.Sprintf("%s: %d of %d were given up, the last: %s", what, n, all, why)
}

// TestSurvive_NamesTheStarving: the check names a single cluster without successes. A success before the
// attack, or too late, does not count.
func TestSurvive_NamesTheStarving(t *testing.T) {
	t.Parallel()
	began := time.Now()
	s := &stage{hub: &actor{}}
	var whole []outputLine
	for _, what := range s.wanted("joiners") {
		what, of, _ := strings.Cut(what, " ")
		whole = append(whole, outputLine{At: began, What: what, Of: of})
	}
	for i, want := range s.wanted("joiners") {
		for _, l := range []outputLine{{}, {At: began.Add(-time.Second)}, {At: began, Took: givenUp}} {
			reports := slices.Clone(whole)
			l.What, l.Of = reports[i].What, reports[i].Of
			reports[i] = l
			if got := unserved(reports, began, s.wanted("joiners")); got != want {
				t.Errorf("%+v: starves %q, want %q", l, got, want)
			}
		}
	}
	if got := unserved(whole, began, s.wanted("joiners")); len(whole) != 1+2*clusters+2 || got != "" {
		t.Errorf("all %d are served, and %q starves", len(whole), got)
	}
	var reported []outputLine
	for n := range 1000 {
		l := outputLine{At: began, What: "status", Text: "refused"}
		if n < 11 {
			l.Took = givenUp
		}
		reported = append(reported, l, outputLine{At: began.Add(time.Minute), What: "status", Took: givenUp}, outputLine{At: began, What: "connect", Took: givenUp})
	}
	to := began.Add(time.Second)
	if got, want := tooMany(reported, "status", began, to), "status: 11 of 1000 were given up, the last: refused"; got != want {
		t.Errorf("found %q, want %q", got, want)
	}
	if got := tooMany(reported[6:], "status", began, to) + tooMany(reported[:6], "connect", began, to); got != "" {
		t.Errorf("found %q", got)
	}
}
