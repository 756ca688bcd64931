package outbox_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/desired"
	"github.com/hawser-io/hawser/pkg/agent/outbox"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/transport"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

type bench struct {
	t *testing.T
	outbox.Outbox
	ids int
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t}
	b.AgentID = "agent-1"
	b.NewID = func() string { b.ids++; return fmt.Sprintf("e-%d", b.ids) }
	return b
}

func work(id string, version int64) *desired.Work {
	return &desired.Work{Ref: manifestwork.Ref{ResourceID: id, Name: "n-" + id, Cluster: "c1", Generation: version}, Source: "hub", Version: version}
}

func status(reason string) workv1.ManifestWorkStatus {
	return workv1.ManifestWorkStatus{Conditions: []metav1.Condition{{Type: "Applied", Status: "True", Reason: reason}}}
}

func (b *bench) put(w *desired.Work, reason string, want bool) {
	b.t.Helper()
	if due, err := b.Put(w, status(reason), false); err != nil || due != want {
		b.t.Fatalf("put: due %v, %v; want %v", due, err, want)
	}
}

func (b *bench) take(id string) outbox.OutgoingStatus {
	b.t.Helper()
	l, ok, err := b.Next(id, now)
	if !ok || err != nil {
		b.t.Fatalf("nothing to take: %v", err)
	}
	return l
}

func (b *bench) nothing(id string) {
	b.t.Helper()
	if l, ok, err := b.Next(id, now); ok || err != nil {
		b.t.Fatalf("got %v, %v; want nothing", l.Event, err)
	}
}

func (b *bench) done(l outbox.OutgoingStatus, err error, want bool) {
	b.t.Helper()
	if again := b.Done(l, transport.Receipt{}, err); again != want {
		b.t.Fatalf("again %v, want %v", again, want)
	}
}

func decode(t *testing.T, e codec.Event) manifestwork.StatusReport {
	t.Helper()
	r, err := manifestwork.DecodeStatus(e)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestOutbox_SendsAStatusOnce(t *testing.T) {
	b := newBench(t)
	b.nothing("1")
	b.put(work("1", 3), "a", true)
	l := b.take("1")
	r := decode(t, l.Event)
	hash, _ := manifestwork.StatusHash(status("a"))
	if r.ResourceID != "1" || r.Version != 3 || r.OriginalSource != "hub" || r.AgentID != "agent-1" || r.Cluster != "c1" || r.Hash != hash || r.Deleted || r.Action != codec.UpdateRequest {
		t.Fatalf("got %+v", r)
	}
	b.nothing("1") // one status of a work is in flight
	b.done(l, nil, false)
	b.put(work("1", 3), "a", false)
	b.nothing("1")
	b.put(work("1", 4), "a", true) // the same status of another version must be sent
	b.done(b.take("1"), nil, false)
	if b.CountDue() != 0 {
		t.Fatalf("%d due", b.CountDue())
	}
}

// The tag is the same when a source returns to an earlier spec; the revision is not.
func TestOutbox_AnswersASpecEachTimeItIsAccepted(t *testing.T) {
	b := newBench(t)
	b.Remember = true
	b.Reconnected(true)
	w := work("1", 1)
	w.Tag, w.Revision = codec.Tag{1}, 4
	b.put(w, "a", true)
	b.answered(b.take("1"), codec.OutcomeAccepted, false)
	highest, _ := b.Reported()
	b.put(w, "a", false)
	again := *w
	again.Revision = 6
	b.put(&again, "a", true)

	for _, c := range []struct {
		w    *desired.Work
		want bool
	}{{w, false}, {&again, true}} {
		b.put(w, "a", false)
		next := remembering(t, b)
		next.put(c.w, "a", c.want)
		next.Reconnected(true)
		next.observe(highest)
		next.put(c.w, "a", c.want)
	}
}

func TestOutbox_KeepsVersionOfStatus(t *testing.T) {
	b := newBench(t)
	w := work("1", 1)
	w.Tag = codec.Tag{1}
	b.put(w, "a", true)
	if !b.Answers("1", w.Tag) || b.Answers("1", codec.Tag{2}) || b.Answers("2", w.Tag) {
		t.Error("mistaken")
	}
}

func TestOutbox_TheLatestWinsAndSequenceGrows(t *testing.T) {
	b := newBench(t)
	b.put(work("1", 1), "a", true)
	first := b.take("1")
	b.put(work("1", 1), "b", true)
	b.put(work("1", 2), "c", true)
	b.done(first, nil, true)
	second := b.take("1")
	if r := decode(t, second.Event); r.Version != 2 || r.Status.Conditions[0].Reason != "c" {
		t.Fatalf("got %+v", r)
	}
	newer, err := codec.CompareSequence(decode(t, first.Event).SequenceID, decode(t, second.Event).SequenceID)
	if err != nil || !newer {
		t.Fatalf("the second status is not newer: %v", err)
	}
	b.put(work("1", 1), "a", true)
	b.done(second, errors.New("lost"), true)
	if r := decode(t, b.take("1").Event); r.Status.Conditions[0].Reason != "a" {
		t.Fatalf("got %+v", r)
	}
}

func TestOutbox_RefusedForGood(t *testing.T) {
	b := newBench(t)
	b.put(work("1", 1), "a", true)
	b.done(b.take("1"), &transport.Error{Code: transport.CodeTooLarge}, false)
	b.nothing("1")
	b.put(work("1", 1), "a", false)
	if got := b.Reconnected(true); !slices.Equal(got, []string{"1"}) {
		t.Fatalf("another broker is not tried: %v", got)
	}
	b.done(b.take("1"), &transport.Error{Code: transport.CodeTooLarge}, false)
	b.put(work("1", 1), "b", true) // another status may be small enough
	b.done(b.take("1"), nil, false)
}

func TestOutbox_AnswersRequests(t *testing.T) {
	b := newBench(t)
	if b.Request("1", codec.ResyncResponse) {
		t.Fatal("a status is due before one exists")
	}
	b.put(work("1", 1), "a", true)
	b.done(b.take("1"), nil, false)
	if !b.Request("1", codec.ResyncResponse) {
		t.Fatal("no status is due")
	}
	l := b.take("1")
	if r := decode(t, l.Event); r.Action != codec.ResyncResponse {
		t.Fatalf("got %s", r.Action)
	}
	b.done(l, &transport.Error{Code: transport.CodeUnavailable}, true)
	if l = b.take("1"); decode(t, l.Event).Action != codec.ResyncResponse {
		t.Fatal("the repeated report is not an answer")
	}
	b.Request("1", codec.UpdateRequest) // the status is requested again while in flight
	b.done(l, nil, true)
	b.done(b.take("1"), nil, false)
}

func TestOutbox_Deleted(t *testing.T) {
	b := newBench(t)
	b.put(work("1", 1), "a", true)
	b.done(b.take("1"), nil, false)
	if due, err := b.Put(work("1", 2), status("a"), true); err != nil || !due {
		t.Fatalf("%v, %v", due, err)
	}
	var seen []string
	b.put(work("0", 1), "a", true)
	b.Each(func(id, hash string, deleted bool) {
		seen = append(seen, fmt.Sprint(id, " ", hash != "", " ", deleted))
	})
	if want := []string{"0 true false", "1 true true"}; !slices.Equal(seen, want) {
		t.Fatalf("got %v, want %v", seen, want)
	}
	l := b.take("1")
	if !l.Deleted || !decode(t, l.Event).Deleted {
		t.Fatal("the condition is missing")
	}
	b.Remove("1")
	b.done(l, nil, false)
	b.nothing("1")
	if b.CountDue() != 1 {
		t.Fatalf("%d due", b.CountDue())
	}
}

func TestOutbox_ReportsUnencodableStatus(t *testing.T) {
	b := newBench(t)
	w := work("1", -1)
	b.put(w, "a", true)
	if _, ok, err := b.Next("1", now); ok || err == nil {
		t.Fatalf("got %v, %v", ok, err)
	}
	b.nothing("1")
}

func (b *bench) answered(l outbox.OutgoingStatus, outcome string, want bool) {
	b.t.Helper()
	if again := b.Done(l, transport.Receipt{Outcome: outcome}, nil); again != want {
		b.t.Fatalf("again %v, want %v", again, want)
	}
}

func (b *bench) observe(highest string, want ...string) {
	b.t.Helper()
	if got, err := b.Observe(highest); err != nil || !slices.Equal(got, want) {
		b.t.Fatalf("due %q, %v; want %q", got, err, want)
	}
}

// sequence returns an id that an agent makes the given time later.
func sequence(t *testing.T, later time.Duration) string {
	t.Helper()
	var s codec.Sequencer
	return s.Next(now.Add(later).UnixMilli())
}

// Scenario:
//
//	t1: a process sends a status with a high sequence id; its clock is ahead.
//	t2: the next process starts with a clock that went back.
//	t3: it sends a status, and the broker reports it as stale.
//
// Result: the status waits until the broker reports its highest id. If that is known, it is sent again at once,
// also if the two ids are equal. If no id can be higher, it is never sent again.
func TestOutbox_RaisesTooLowSequenceIDs(t *testing.T) {
	b := newBench(t)
	b.Reconnected(true)
	b.put(work("1", 1), "a", true)
	b.Request("1", codec.ResyncResponse)
	b.answered(b.take("1"), codec.OutcomeStale, false)
	b.put(work("1", 1), "b", false) // another status would be too low as well
	b.nothing("1")
	if b.CountDue() != 1 {
		t.Fatalf("%d due", b.CountDue())
	}
	highest := sequence(t, time.Hour)
	b.observe(highest, "1")
	l := b.take("1")
	r := decode(t, l.Event)
	if newer, err := codec.CompareSequence(highest, r.SequenceID); err != nil || !newer || r.Action != codec.ResyncResponse || r.Status.Conditions[0].Reason != "b" {
		t.Fatalf("got %+v, %v", r, err)
	}
	b.answered(l, codec.OutcomeAccepted, false)
	b.observe(r.SequenceID)

	// The broker reported its highest id while the status was in flight.
	b.put(work("2", 1), "a", true)
	l = b.take("2")
	b.observe(sequence(t, 2*time.Hour))
	b.answered(l, codec.OutcomeStale, true)
	b.answered(b.take("2"), codec.OutcomeAccepted, false)

	// The previous process used the same id, and the broker has reported it. The next id is newer, so the status
	// is sent at once.
	b.put(work("2", 1), "c", true)
	l = b.take("2")
	b.observe(decode(t, l.Event).SequenceID)
	b.answered(l, codec.OutcomeStale, true)
	b.answered(b.take("2"), codec.OutcomeAccepted, false)

	// After another connect, the status is tried again.
	b.put(work("2", 1), "b", true)
	b.answered(b.take("2"), codec.OutcomeStale, false)
	if got := b.Reconnected(true); !slices.Equal(got, []string{"2"}) {
		t.Fatalf("due %q", got)
	}
	if _, err := b.Observe("9223372036854775807"); err == nil {
		t.Fatal("an id that nothing can follow")
	}
	// The status is not tried repeatedly.
	b.answered(b.take("2"), codec.OutcomeStale, false)
	b.nothing("2")
	b.put(work("2", 1), "d", true)
	b.answered(b.take("2"), codec.OutcomeAccepted, false) // the broker has no status of this work yet
	b.put(work("2", 1), "e", true)
	b.answered(b.take("2"), codec.OutcomeStale, false)
	if got := b.Reconnected(true); !slices.Equal(got, []string{"2"}) {
		t.Fatalf("due %q", got)
	}
}

func TestOutbox_RepeatsStatusesMissingAtTheBroker(t *testing.T) {
	b := newBench(t)
	b.Reconnected(true)
	var ids []string
	for n, outcome := range []string{codec.OutcomeAccepted, codec.OutcomeConfirmed, codec.OutcomeIgnored, ""} {
		id := fmt.Sprint(n)
		b.put(work(id, 1), "a", true)
		l := b.take(id)
		ids = append(ids, decode(t, l.Event).SequenceID)
		b.answered(l, outcome, false)
	}
	b.observe("") // the checkpoint was created before the first status was accepted
	b.Reconnected(true)
	b.put(work("9", 1), "a", true)
	before := b.take("9")
	b.Reconnected(true)
	b.answered(before, codec.OutcomeAccepted, false) // the answer of an earlier connection
	b.observe(ids[0], "1", "9")
	b.answered(b.take("1"), codec.OutcomeAccepted, false)
	b.observe(ids[0]) // only the first checkpoint of a connection has this effect
}

// remembering returns the outbox of a new process, with the memory of another one.
func remembering(t *testing.T, of *bench) *bench {
	t.Helper()
	sequence, accepted := of.Reported()
	b := newBench(t)
	b.Remember = true
	if err := b.Restore(sequence, "", accepted); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestOutbox_ReservesSequenceIDs(t *testing.T) {
	b := newBench(t)
	if limit, needed := b.ToReserve("1", now, time.Minute); needed {
		t.Fatalf("%s for nothing", limit)
	}
	b.put(work("1", 1), "a", true)
	limit, needed := b.ToReserve("1", now, time.Minute)
	if !needed {
		t.Fatal("nothing is reserved yet")
	}
	b.Reserved(limit)
	for _, later := range []time.Duration{0, time.Minute} {
		if again, needed := b.ToReserve("1", now.Add(later), time.Minute); needed {
			t.Fatalf("%s after %v: %s is enough", again, later, limit)
		}
	}
	if _, needed := b.ToReserve("1", now.Add(time.Minute+time.Millisecond), time.Minute); !needed {
		t.Fatal("the ids are used up")
	}
	l := b.take("1")
	if _, needed := b.ToReserve("1", now.Add(time.Hour), time.Minute); needed {
		t.Fatal("for one that is under way")
	}

	// The clock of the next process is behind.
	next := newBench(t)
	if err := next.Restore("", limit, nil); err != nil {
		t.Fatal(err)
	}
	next.put(work("1", 1), "a", true)
	for _, earlier := range []string{limit, decode(t, l.Event).SequenceID} {
		n := next.sequence(now.Add(-time.Hour))
		if newer, err := codec.CompareSequence(earlier, n); err != nil || !newer {
			t.Fatalf("%s is not above %s: %v", n, earlier, err)
		}
	}
}

// sequence returns the id of the next status.
func (b *bench) sequence(at time.Time) string {
	b.t.Helper()
	l, ok, err := b.Next("1", at)
	if !ok || err != nil {
		b.t.Fatal(err)
	}
	b.Done(l, transport.Receipt{}, errors.New("lost"))
	return decode(b.t, l.Event).SequenceID
}

func TestOutbox_RemembersAnEarlierProcess(t *testing.T) {
	old := newBench(t)
	old.Remember = true
	old.Reconnected(true)
	highest := ""
	for _, id := range []string{"1", "2", "3", "4"} {
		old.put(work(id, 1), "a", true)
		l := old.take(id)
		old.answered(l, codec.OutcomeAccepted, false)
		highest = decode(t, l.Event).SequenceID
	}
	old.put(work("5", 1), "a", true)
	old.done(old.take("5"), errors.New("lost"), true) // the result is unknown
	old.put(work("6", 1), "a", true)
	old.answered(old.take("6"), codec.OutcomeIgnored, false) // the broker does not store the status
	old.Remove("4")

	t.Run("the broker has nothing newer", func(t *testing.T) {
		b := remembering(t, old)
		b.put(work("1", 1), "a", false)
		b.put(work("2", 1), "b", true) // another status
		b.put(work("3", 2), "a", true) // another version
		b.put(work("4", 1), "a", true)
		b.put(work("5", 1), "a", true)
		b.put(work("6", 1), "a", true)
		if got := b.Reconnected(true); !slices.Equal(got, []string{"2", "3", "4", "5", "6"}) {
			t.Fatalf("due %q", got)
		}
		if sequence, _ := b.Reported(); sequence != highest {
			t.Fatalf("%s is stored before it is known which statuses were accepted since %s", sequence, highest)
		}
		b.observe(highest)
		b.nothing("1")
		b.put(work("1", 1), "a", false)
		l := b.take("2")
		if newer, err := codec.CompareSequence(highest, decode(t, l.Event).SequenceID); err != nil || !newer {
			t.Fatalf("%s: %v", decode(t, l.Event).SequenceID, err)
		}
		b.answered(l, codec.OutcomeAccepted, false)
		sequence, accepted := b.Reported()
		if sequence != decode(t, l.Event).SequenceID || len(accepted) != 3 || accepted["2"] == "" || accepted["3"] == "" {
			t.Fatalf("reported %q, %v", sequence, accepted)
		}
		// Transition times and the order of conditions do not matter.
		times := status("a")
		times.Conditions = append([]metav1.Condition{{Type: "Z", LastTransitionTime: metav1.NewTime(now)}}, times.Conditions...)
		same := status("a")
		same.Conditions = append(same.Conditions, metav1.Condition{Type: "Z"})
		if _, err := b.Put(work("7", 1), times, false); err != nil {
			t.Fatal(err)
		}
		b.answered(b.take("7"), codec.OutcomeAccepted, false)
		again := remembering(t, b)
		if due, err := again.Put(work("7", 1), same, false); err != nil || due {
			t.Fatalf("due %t, %v", due, err)
		}
		// The broker loses the status later.
		again.Reconnected(true)
		sequence, _ = b.Reported()
		again.observe(sequence)
		again.Reconnected(true)
		again.observe(highest, "7")
	})
	t.Run("the broker has something newer", func(t *testing.T) {
		b := remembering(t, old)
		b.put(work("1", 1), "a", false)
		b.Reconnected(true)
		b.observe(sequence(t, time.Hour), "1")
		b.answered(b.take("1"), codec.OutcomeAccepted, false)
		b.put(work("2", 1), "a", true)
	})
	t.Run("requested nevertheless", func(t *testing.T) {
		b := remembering(t, old)
		b.put(work("1", 1), "a", false)
		b.Request("1", codec.ResyncResponse)
		b.take("1")
		b.observe(highest)
		b.put(work("1", 1), "a", true) // the result is unknown
	})
	t.Run("another broker", func(t *testing.T) {
		b := remembering(t, old)
		b.put(work("1", 1), "a", false)
		if got := b.Reconnected(false); !slices.Equal(got, []string{"1"}) {
			t.Fatalf("due %q", got)
		}
	})
}

// TestOutbox_LowersTooHighSequenceIDs: a broker rejects ids of a clock that is days ahead of its own. New ids
// follow the broker's clock and are above its highest id.
func TestOutbox_LowersTooHighSequenceIDs(t *testing.T) {
	b := newBench(t)
	b.Reconnected(false)
	broker := now.Add(-30 * 24 * time.Hour)
	check := func(l outbox.OutgoingStatus) error { return codec.CheckSequence(decode(t, l.Event).SequenceID, broker) }
	refused := &transport.Error{Code: transport.CodeInvalid, Next: transport.NextStop, Attribute: codec.ExtSequenceID, Message: "too far ahead"}

	b.put(work("w", 1), "Applied", true)
	first := b.take("w") // the broker's clock is unknown yet
	if check(first) == nil {
		t.Fatal("the broker accepts the status, so the test checks nothing")
	}
	b.Clock(broker, now)
	highest := (&codec.Sequencer{}).Next(broker.Add(time.Hour).UnixMilli())
	if due, err := b.Observe(highest); len(due) > 0 || err != nil {
		t.Fatalf("due %v, %v", due, err)
	}
	b.done(first, refused, true)
	second := b.take("w")
	if err := check(second); err != nil {
		t.Error(err)
	}
	if newer, err := codec.CompareSequence(highest, decode(t, second.Event).SequenceID); !newer || err != nil {
		t.Errorf("the second id is not above what the broker has: %v", err)
	}
	b.done(second, nil, false)

	// A clock that is wrong by hours is used unchanged, so ids follow it, like those of other agents.
	b.Clock(now.Add(-time.Hour), now)
	b.put(work("w", 2), "Applied", true)
	third := b.take("w")
	if newer, err := codec.CompareSequence((&codec.Sequencer{}).Next(now.Add(-time.Second).UnixMilli()), decode(t, third.Event).SequenceID); !newer || err != nil {
		t.Errorf("the third id is not of this clock: %v", err)
	}
	// A status that is rejected for another reason is not retried.
	b.done(third, &transport.Error{Code: transport.CodeInvalid, Next: transport.NextStop, Attribute: "data"}, false)
}
