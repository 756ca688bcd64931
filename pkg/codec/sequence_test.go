package codec

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestSequencer_Ahead(t *testing.T) {
	var s Sequencer
	for _, now := range []int64{1_900_000_000_000, 1_800_000_000_000} { // the second clock went back
		limit := s.UpperBound(now, 1000)
		for _, later := range []int64{0, 999, 1000} {
			id := s.Next(now + later)
			if newer, err := CompareSequence(limit, id); err != nil || newer {
				t.Fatalf("after %d ms %s is above %s: %v", later, id, limit, err)
			}
		}
		id := s.Next(1_900_000_000_000 + 1001)
		if newer, err := CompareSequence(limit, id); err != nil || newer != (now == 1_900_000_000_000) {
			t.Fatalf("%s is above %s: %t, %v", id, limit, newer, err)
		}
	}
	var end Sequencer
	if got, want := end.UpperBound(1<<60, 1000), end.UpperBound(1<<60, 2000); got != want {
		t.Errorf("beyond the end: %s and %s", got, want)
	}
}

func TestC7_CompareSequence(t *testing.T) {
	id := func(time, node, step int64) string {
		return strconv.FormatInt(time<<22|node<<12|step, 10)
	}
	for _, c := range []struct {
		name, prev, next string
		newer, ok        bool
	}{
		{"first", "", "1", true, true},
		{"later time", id(1, 1, 0), id(2, 1, 0), true, true},
		{"later time, lower step", id(1, 1, 9), id(2, 1, 0), true, true},
		{"earlier time, higher step", id(2, 1, 0), id(1, 1, 9), false, true},
		{"later step", id(2, 1, 0), id(2, 1, 1), true, true},
		{"earlier step", id(2, 1, 1), id(2, 1, 0), false, true},
		{"equal", id(2, 1, 1), id(2, 1, 1), false, true},
		{"node 0 on both sides", "4194304", "8388608", true, true}, // 1<<22, 2<<22
		{"other node", id(1, 1, 0), id(2, 2, 0), false, false},
		{"no number", "1", "x", false, false},
		{"no number, first", "", "x", false, false},
		{"empty", "1", "", false, false},
		{"empty, first", "", "", false, false},
		{"stored one is no number", "x", "1", false, false},
		{"negative", "1", "-1", false, false},
		{"plus sign", "1", "+5", false, false},
		{"more than 63 bits", "1", "9223372036854775808", false, false},
	} {
		newer, err := CompareSequence(c.prev, c.next)
		if newer != c.newer || (err == nil) != c.ok {
			t.Errorf("%s: CompareSequence(%q, %q) = %v, %v", c.name, c.prev, c.next, newer, err)
		}
		var a *AttributeError
		if err != nil && (!errors.As(err, &a) || a.Attribute != ExtSequenceID) {
			t.Errorf("%s: %v does not name the attribute", c.name, err)
		}
	}
}

func TestSequencer_Layout(t *testing.T) {
	var s Sequencer
	if got, want := s.Next(1795163142409), "2123694259314888704"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := s.Next(1795163142409), "2123694259314888705"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Every id is newer than all earlier ones, for any clock and any observed ids.
func TestSequencer_OnlyGoesUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s, other Sequencer
		highest := ""
		next := func(now int64) {
			id := s.Next(now)
			if newer, err := CompareSequence(highest, id); err != nil || !newer {
				t.Fatalf("%s after %s: newer %v, %v", id, highest, newer, err)
			}
			highest = id
		}
		clock := rapid.OneOf(
			rapid.Int64Range(sequenceEpoch-5, sequenceEpoch+5),
			rapid.Int64Range(1795163142000, 1795163142003),
			rapid.Int64Range(-1<<50, sequenceEpoch+sequenceMaxTime/2),
		)
		t.Repeat(map[string]func(*rapid.T){
			"next": func(t *rapid.T) { next(clock.Draw(t, "now")) },
			"burst": func(t *rapid.T) {
				now := clock.Draw(t, "now")
				for range sequenceMaxStep + 2 {
					next(now)
				}
			},
			"observe": func(t *rapid.T) {
				id := other.Next(clock.Draw(t, "other clock"))
				if err := s.Observe(id); err != nil {
					t.Fatal(err)
				}
				if newer, err := CompareSequence(highest, id); err != nil {
					t.Fatal(err)
				} else if newer {
					highest = id
				}
			},
		})
	})
}

func TestSequencer_ObserveRejectsMaximum(t *testing.T) {
	for _, bad := range []string{
		"x", "-1",
		strconv.FormatInt(5<<22|2<<12, 10),               // node 2
		strconv.FormatInt(sequenceMaxTime<<22|1<<12, 10), // the end of time
	} {
		var s Sequencer
		err := s.Observe(bad)
		var a *AttributeError
		if !errors.As(err, &a) || a.Attribute != ExtSequenceID {
			t.Errorf("Observe(%q): %v", bad, err)
		}
		if got, want := s.Next(1795163142409), "2123694259314888704"; got != want {
			t.Errorf("Observe(%q) left a trace: next is %s", bad, got)
		}
	}
	var s Sequencer
	if err := s.Observe(""); err != nil {
		t.Errorf("Observe of none: %v", err)
	}
}

func TestSequencer_StopsAtTheEndOfTheLayout(t *testing.T) {
	var s Sequencer
	const end = sequenceEpoch + sequenceMaxTime
	last := ""
	for range sequenceMaxStep + 1 {
		last = s.Next(end + 5)
	}
	if got := s.Next(end + 5); got != last || got[0] == '-' {
		t.Errorf("got %s after %s", got, last)
	}
}

func TestC8_ResourceID(t *testing.T) {
	got := ResourceID("src1", "manifestworks.work.open-cluster-management.io", "cluster1", "w1")
	if want := "28e8bfbf-1292-522f-999a-20f1a0f81b1e"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestCheckSequence: invalid ids are rejected, and the reported highest id can be followed.
func TestCheckSequence(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	at := func(d time.Duration) string { return (&Sequencer{}).Next(now.Add(d).UnixMilli()) }
	for id, ok := range map[string]bool{
		at(0): true, at(-1000 * time.Hour): true, at(SequenceTolerance): true, strconv.Itoa(1<<22 | sequenceNode<<sequenceStepBits): true,
		at(SequenceTolerance + time.Second): false, "0": false, "7": false, "": false, "x": false, "9223372036854775807": false,
	} {
		err := CheckSequence(id, now)
		var a *AttributeError
		if (err == nil) != ok || err != nil && (!errors.As(err, &a) || a.Attribute != ExtSequenceID) {
			t.Errorf("%s: %v", id, err)
		}
	}
	for _, id := range []string{"", at(0), at(SequenceTolerance - 2*time.Minute)} {
		if got := FollowableSequence(id, now); got != id {
			t.Errorf("%s became %s", id, got)
		}
	}
	for _, id := range []string{at(SequenceTolerance), at(1000 * time.Hour), "9223372036854775807"} {
		var s Sequencer
		if err := s.Observe(FollowableSequence(id, now)); err != nil || CheckSequence(s.Next(now.UnixMilli()), now) != nil {
			t.Errorf("%s cannot be followed: %v", id, err)
		}
	}
}
