// Package outbox is the outbox of an agent: the latest status of every work, until the broker has accepted it.
//
// A newer status replaces a waiting one, so the outbox has at most one status per work, however long the broker
// is unreachable. At most one status of a work is in flight, so that they arrive in order. The outbox is pure:
// the caller passes the time, sends what Next returns, and reports the result with Done.
//
// A broker that has seen a higher sequence id than ours (our clock went back) drops a status as stale. Such a
// status waits until [Outbox.Observe] sets the ids that must be exceeded.
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
	// AgentID is the source of the events; NewID creates their ids.
	AgentID string
	NewID   func() string
	// Remember makes Reported complete, at the cost of another hash per status.
	Remember bool

	items    map[string]*item
	sequence codec.Sequencer
	// connection counts connections. unverified: the broker has not reported since the last connect which sequence
	// id it accepted last.
	connection uint64
	unverified bool
	// observed is the highest id that the broker reported. unfollowable: no higher id is possible.
	observed     string
	unfollowable bool
	// lead is the time by which the local clock is ahead of the broker's, if that is relevant.
	lead time.Duration
	// reserved is the limit up to which ids are reserved.
	reserved string
	memory   memory
}

// item is the status of one work.
type item struct {
	work    *desired.Work
	status  workv1.ManifestWorkStatus
	hash    string
	deleted bool

	accepted  string       // the fingerprint that the broker accepted last
	refused   string       // a fingerprint that the broker never accepts
	requested codec.Action // a requester needs it again, "" if there is none
	underWay  bool
	// overtaken: the sequence id was too low; it waits for Observe.
	overtaken bool
	// sequence is the id of the accepted status and connection its connection; sequence is "" if the broker did not
	// store it. essence is its remembered hash.
	sequence   string
	connection uint64
	essence    string
	// possiblySent: an earlier process may have sent the same; see memory.
	possiblySent bool
}

// fingerprint is equal for statuses that are equal to the receiver. Every spec is answered, including one with
// the same version and result. This includes a spec to which a hub returned: the sender may have lost the
// earlier status. The tag identifies the content of a spec, the revision its acceptance; the fingerprint has
// both.
func (i *item) fingerprint() string { return i.about(i.hash) }

func (i *item) about(hash string) string {
	return fmt.Sprintf("%s %d %s %d %s %t", i.work.Source, i.work.Generation, i.work.Tag, i.work.Revision, hash, i.deleted)
}

// due reports whether the status of a work must be sent.
func (o *Outbox) due(i *item) bool {
	f := i.fingerprint()
	return !i.overtaken && (i.requested != "" || f != i.accepted && f != i.refused && !(i.possiblySent && o.memory.undecided))
}

// OutgoingStatus is a status in flight.
type OutgoingStatus struct {
	Event codec.Event
	// Work is the work of the status. Deleted: it is the last status of the work.
	Work    *desired.Work
	Deleted bool

	fingerprint string
	essence     string
	requested   codec.Action
	sequence    string
	connection  uint64
}

// Put sets the status of a work, within [conditions.MaxStatus]. deleted: nothing of the work is left, and this
// is its last status. due: it must be sent.
func (o *Outbox) Put(w *desired.Work, status workv1.ManifestWorkStatus, deleted bool) (due bool, err error) {
	last, _ := o.LastStatus(w.ResourceID)
	status = conditions.LimitSize(last, status, w.Generation)
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

// LastStatus returns the last status of a work, and whether it is the final one; the zero value if there is none.
func (o *Outbox) LastStatus(id string) (status workv1.ManifestWorkStatus, deleted bool) {
	if i := o.items[id]; i != nil {
		return i.status, i.deleted
	}
	return status, false
}

// Answers reports whether the status of a work is about the spec with this tag. A status of an earlier spec
// need not be sent again.
func (o *Outbox) Answers(id string, tag codec.Tag) bool {
	i := o.items[id]
	return i != nil && i.work.Tag == tag
}

// Renew records that a spec with the same tag was accepted again: an earlier status is no answer to it.
func (o *Outbox) Renew(w *desired.Work) {
	if o.Answers(w.ResourceID, w.Tag) {
		i := o.items[w.ResourceID]
		i.work = w
		o.recognize(i)
	}
}

// Request makes the status of a work due even if it was accepted before. action is the action of the event. It
// returns false if there is no status.
func (o *Outbox) Request(id string, action codec.Action) bool {
	i := o.items[id]
	if i == nil {
		return false
	}
	i.requested = action
	return true
}

// Next returns the status to send for a work; ok is false if none is due, or one is in flight.
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
	// Until the answer arrives, the broker's state is unknown.
	i.underWay, i.requested, i.accepted, i.sequence, i.essence = true, "", "", "", ""
	o.memory.forget(i.work.ResourceID)
	return l, true, nil
}

// Done records the result of sending a status; r is the receipt if err is nil. again: the work has another
// status to send, at once if err is nil, else after a back-off.
func (o *Outbox) Done(l OutgoingStatus, r transport.Receipt, err error) (again bool) {
	i := o.items[l.Work.ResourceID]
	if i == nil {
		return false
	}
	i.underWay = false
	switch {
	case err == nil && r.Outcome == codec.OutcomeStale && o.unfollowable:
		i.refused = l.fingerprint // any id is too low
	case err == nil && r.Outcome == codec.OutcomeStale:
		i.undelivered(l)
		// New ids exceed the observed one. So the status waits only if the broker has a higher id that it has
		// not reported.
		i.overtaken = newer(o.observed, l.sequence)
	case err == nil:
		i.accepted = l.fingerprint
		if r.Outcome != "" && r.Outcome != codec.OutcomeIgnored { // the broker stores it
			i.sequence, i.connection, i.essence = l.sequence, l.connection, l.essence
			o.memory.accepted(l.sequence)
		}
	case refusesSequence(err):
		// The clock is wrong by days, or was wrong when ids were reserved. New ids start above those of the
		// broker. If no higher id is possible, Observe has reported that.
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

// refusesSequence reports whether a broker rejects only the sequence id.
func refusesSequence(err error) bool {
	var e *transport.Error
	return errors.As(err, &e) && e.Code == transport.CodeInvalid && e.Attribute == codec.ExtSequenceID
}

// leadMargin is the distance to the broker's bound up to which the local clock is used unchanged. Beyond it, a
// later agent without this state might create lower ids if the broker's clock has changed by then.
const leadMargin = 12 * time.Hour

// Clock sets the broker's time at the local time now. Sequence ids use the earlier clock if the clocks differ
// so much that the broker would soon reject the ids.
func (o *Outbox) Clock(broker, now time.Time) {
	o.lead = 0
	if lead := now.Sub(broker); !broker.IsZero() && lead > codec.SequenceTolerance-leadMargin {
		o.lead = lead
	}
}

// millis returns the time for sequence ids.
func (o *Outbox) millis(now time.Time) int64 { return now.Add(-o.lead).UnixMilli() }

// undelivered records that the broker does not have the status.
func (i *item) undelivered(l OutgoingStatus) {
	if i.requested == "" {
		i.requested = l.requested
	}
}

// newer reports whether id is newer than than.
func newer(than, id string) bool {
	is, err := codec.CompareSequence(than, id)
	return err == nil && is && id != ""
}

// Observe records the highest sequence id that the broker accepted from this agent, "" if it has none. It
// returns the works with a status to send because of it, in the order of their ids. These are statuses whose id
// was too low. The first time on a connection they include statuses that were accepted on an earlier one and
// lost since. The error is that of codec.Sequencer.Observe.
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

// Reconnected begins a connection. It returns the works with a status to send, in the order of their ids.
// Rejected statuses are retried, because it may be another broker. continued: this broker resumed from the
// agent's cursor.
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

// Each calls f for every work with a status, in the order of their ids, with its status hash. deleted: it is
// the final status.
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

// CountDue returns the number of statuses that the broker has not accepted.
func (o *Outbox) CountDue() int {
	n := 0
	for _, i := range o.items {
		if o.due(i) || i.underWay || i.overtaken {
			n++
		}
	}
	return n
}
