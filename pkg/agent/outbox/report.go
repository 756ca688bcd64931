// Package outbox is the outbox of an agent: for every work its latest status,
// until the broker accepted it.
//
// A newer status replaces one that waits, so the outbox never holds more than
// one status per work, however long the broker is away. Of each work at most
// one status is under way, so that they arrive in order. The outbox is pure:
// whoever owns it says what time it is, sends what Take returns, and tells with
// Done what became of it.
//
// A broker that has seen a higher sequence id than ours (our clock went back)
// drops a status as stale. Such a status waits until [Outbox.Observe] says how
// high the ids have to be.
package outbox

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/desired"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Outbox holds the statuses of all works. It is not safe for concurrent use.
type Outbox struct {
	// AgentID is the source of the events; NewID makes their ids.
	AgentID string
	NewID   func() string
	// Remember makes Reported complete, at the price of another hash per status.
	Remember bool

	items    map[string]*item
	sequence codec.Sequencer
	// connection counts connections. unverified: the broker has not said since
	// the last one began which sequence id it accepted last.
	connection uint64
	unverified bool
	// observed is the highest id that the broker has said; unfollowable: there is
	// none above it.
	observed     string
	unfollowable bool
	// lead is by how much the clock here is ahead of the broker's, where that matters.
	lead time.Duration
	// reserved is up to where ids may be used without asking first.
	reserved string
	memory   memory
}

// item is the status of one work.
type item struct {
	work    *desired.Work
	status  workv1.ManifestWorkStatus
	hash    string
	deleted bool

	accepted  string       // the fingerprint the broker accepted last
	refused   string       // one that it will never accept
	requested codec.Action // somebody wants to hear it again, "" if not
	underWay  bool
	// overtaken: the sequence id was too low; wait for Observe.
	overtaken bool
	// sequence is the id under which accepted was accepted, on which connection;
	// "" if the broker did not keep it. essence is what is remembered of it.
	sequence   string
	connection uint64
	essence    string
	// possiblySent: an earlier process may have sent the same; see memory.
	possiblySent bool
}

// fingerprint says whether two statuses are the same to the receiver. Every
// spec is answered, also one of the same version with the same outcome, and one
// that a hub went back to: whoever sends it may have forgotten what was said of
// the one before. A tag alone does not tell: it says what a spec is, the revision
// says which time it was accepted.
func (i *item) fingerprint() string { return i.about(i.hash) }

func (i *item) about(hash string) string {
	return fmt.Sprintf("%s %d %s %d %s %t", i.work.Source, i.work.Generation, i.work.Tag, i.work.Revision, hash, i.deleted)
}

// due reports whether the status of a work is to be sent.
func (o *Outbox) due(i *item) bool {
	f := i.fingerprint()
	return !i.overtaken && (i.requested != "" || f != i.accepted && f != i.refused && !(i.possiblySent && o.memory.undecided))
}

// OutgoingStatus is one status under way.
type OutgoingStatus struct {
	Event codec.Event
	// Work is what the status is about; Deleted says that it is the last one.
	Work    *desired.Work
	Deleted bool

	fingerprint string
	essence     string
	requested   codec.Action
	sequence    string
	connection  uint64
}

// Put sets the status of a work, within [conditions.MaxStatus]. deleted says that nothing of the work is left,
// and that this is its last status. due says that it is to be sent.
func (o *Outbox) Put(w *desired.Work, status workv1.ManifestWorkStatus, deleted bool) (due bool, err error) {
	last, _ := o.Last(w.ResourceID)
	status = conditions.Bound(last, status, w.Generation)
	hash, err := manifestwork.StatusHash(status)
	if err != nil {
		return false, fmt.Errorf("status of work %s: %w", w.Name, err)
	}
	i := o.items[w.ResourceID]
	if i == nil {
		if o.items == nil {
			o.items = map[string]*item{}
		}
		i = &item{}
		o.items[w.ResourceID] = i
	}
	i.work, i.status, i.hash, i.deleted = w, status, hash, deleted
	o.recognize(i)
	return o.due(i), nil
}

// Last returns the status of a work that was put last, and whether it is the last one of
// all; the zero value if there is none.
func (o *Outbox) Last(id string) (status workv1.ManifestWorkStatus, deleted bool) {
	if i := o.items[id]; i != nil {
		return i.status, i.deleted
	}
	return status, false
}

// Answers reports whether the status of a work is about the spec with this tag:
// what there is of an earlier one need not be said again.
func (o *Outbox) Answers(id string, tag codec.Tag) bool {
	i := o.items[id]
	return i != nil && i.work.Tag == tag
}

// Renew takes it that a spec with the same tag was accepted once more: what was said
// of it before is no answer to that.
func (o *Outbox) Renew(w *desired.Work) {
	if o.Answers(w.ResourceID, w.Tag) {
		i := o.items[w.ResourceID]
		i.work = w
		o.recognize(i)
	}
}

// Request makes the status of a work due although it may have been accepted
// before. action is that of the event. It returns false if there is no status.
func (o *Outbox) Request(id string, action codec.Action) bool {
	i := o.items[id]
	if i == nil {
		return false
	}
	i.requested = action
	return true
}

// Next returns the status to send for a work; ok is false if none is due, or
// one is under way.
func (o *Outbox) Next(id string, now time.Time) (l OutgoingStatus, ok bool, err error) {
	i := o.items[id]
	if i == nil || i.underWay || !o.due(i) {
		return OutgoingStatus{}, false, nil
	}
	action := i.requested
	if action == "" {
		action = codec.UpdateRequest
	}
	l = OutgoingStatus{
		Work: i.work, Deleted: i.deleted, fingerprint: i.fingerprint(), requested: i.requested,
		sequence: o.sequence.Next(o.millis(now)), connection: o.connection,
	}
	if o.Remember {
		l.essence = i.makeEssence()
	}
	l.Event, err = manifestwork.EncodeStatus(i.work.Ref, i.status, manifestwork.StatusParams{
		ID: o.NewID(), Now: now, Source: o.AgentID, OriginalSource: i.work.Source, Action: action,
		SequenceID: l.sequence, Deleted: i.deleted,
	})
	if err != nil {
		i.refused, i.requested = l.fingerprint, ""
		return OutgoingStatus{}, false, err
	}
	// Until the answer comes nobody knows what the broker has.
	i.underWay, i.requested, i.accepted, i.sequence, i.essence = true, "", "", "", ""
	o.memory.forget(i.work.ResourceID)
	return l, true, nil
}

// Done tells what became of a letter; r is the receipt if err is nil. again
// says that the work has something to send: at once if err is nil, after a
// back-off otherwise.
func (o *Outbox) Done(l OutgoingStatus, r transport.Receipt, err error) (again bool) {
	i := o.items[l.Work.ResourceID]
	if i == nil {
		return false
	}
	i.underWay = false
	switch {
	case err == nil && r.Outcome == codec.OutcomeStale && o.unfollowable:
		i.refused = l.fingerprint // whatever its id is, it is too low
	case err == nil && r.Outcome == codec.OutcomeStale:
		i.undelivered(l)
		// Ids follow above what was observed, so nothing is to be waited for unless
		// the broker has one that it has not said yet.
		i.overtaken = newer(o.observed, l.sequence)
	case err == nil:
		i.accepted = l.fingerprint
		if r.Outcome != "" && r.Outcome != codec.OutcomeIgnored { // the broker keeps it
			i.sequence, i.connection, i.essence = l.sequence, l.connection, l.essence
			o.memory.accepted(l.sequence)
		}
	case refusesSequence(err):
		// A clock is wrong by days, or was when ids were reserved: they begin anew above
		// those that the broker has. That none can follow them was told when they came.
		o.sequence = codec.Sequencer{}
		o.unfollowable = o.sequence.Observe(o.observed) != nil
		i.undelivered(l)
	case !transport.Retryable(err):
		i.refused = l.fingerprint
	default:
		i.undelivered(l)
	}
	return o.due(i)
}

// refusesSequence reports whether a broker refuses a sequence id and nothing else.
func refusesSequence(err error) bool {
	var e *transport.Error
	return errors.As(err, &e) && e.Code == transport.CodeInvalid && e.Attribute == codec.ExtSequenceID
}

// leadMargin is how far below the broker's bound the clock here counts as it is. Where it
// does not, an agent that comes after this one and knows nothing may make lower ids, if
// the broker's clock is another by then.
const leadMargin = 12 * time.Hour

// Clock says what the time is at the broker when it is now here. Sequence ids follow the
// earlier clock where they are so far apart that the broker would soon refuse them.
func (o *Outbox) Clock(broker, now time.Time) {
	o.lead = 0
	if lead := now.Sub(broker); !broker.IsZero() && lead > codec.SequenceTolerance-leadMargin {
		o.lead = lead
	}
}

// millis is the time of sequence ids.
func (o *Outbox) millis(now time.Time) int64 { return now.Add(-o.lead).UnixMilli() }

// undelivered: the broker does not have the letter.
func (i *item) undelivered(l OutgoingStatus) {
	if i.requested == "" {
		i.requested = l.requested
	}
}

// newer reports whether a sequence id is newer than another.
func newer(than, id string) bool {
	is, err := codec.CompareSequence(than, id)
	return err == nil && is && id != ""
}

// Observe takes note of the highest sequence id that the broker accepted from
// this agent, "" if it has none, and returns the works that have something to
// send because of it, in the order of their ids: what was overtaken, and, the
// first time on a connection, what was accepted on an earlier one and is not
// there any more. The error is that of codec.Sequencer.Observe.
func (o *Outbox) Observe(highest string) (due []string, err error) {
	err = o.sequence.Observe(highest)
	o.observed, o.unfollowable = highest, err != nil
	var unknown bool
	if o.unverified {
		unknown = o.decide(highest)
	}
	for id, i := range o.items {
		gone := o.unverified && i.sequence != "" && i.connection != o.connection && newer(highest, i.sequence)
		if gone {
			i.accepted, i.sequence, i.essence = "", "", ""
		}
		if i.overtaken || gone || unknown && o.due(i) {
			i.overtaken = false
			due = append(due, id)
		}
	}
	o.unverified = false
	slices.Sort(due)
	return due, err
}

// Reconnected begins a connection. It returns the works with something to send,
// in the order of their ids. What was refused may be tried again: it may be
// another broker. continued says that this broker knows the agent's cursor.
func (o *Outbox) Reconnected(continued bool) []string {
	o.connection++
	if !continued {
		o.Forget()
	}
	o.unverified, o.observed, o.unfollowable = true, "", false
	var ids []string
	for _, id := range slices.Sorted(maps.Keys(o.items)) {
		i := o.items[id]
		i.refused, i.overtaken = "", false
		if o.due(i) {
			ids = append(ids, id)
		}
	}
	return ids
}

// Each calls f with the status hash of every work that has a status, in the
// order of their ids, and whether it is the last one.
func (o *Outbox) Each(f func(id, hash string, deleted bool)) {
	for _, id := range slices.Sorted(maps.Keys(o.items)) {
		f(id, o.items[id].hash, o.items[id].deleted)
	}
}

// Remove forgets a work.
func (o *Outbox) Remove(id string) {
	delete(o.items, id)
	o.memory.forget(id)
}

// Due returns the number of statuses that the broker has not accepted.
func (o *Outbox) Due() int {
	n := 0
	for _, i := range o.items {
		if o.due(i) || i.underWay || i.overtaken {
			n++
		}
	}
	return n
}
