package consistency

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Key names a work on the hub, and its object on the cluster: both have the same
// name.
type Key struct{ Cluster, Name string }

func (k Key) String() string { return k.Cluster + "/" + k.Name }

// History holds the requests to the hub and the observed objects of the clusters. Its methods may be called
// concurrently; they never block.
type History struct {
	now func() time.Time

	mu         sync.Mutex
	entries    map[Key]*entry
	complaints []Complaint
	returns    []Complaint
	mayReturn  bool
	events     int
}

// Complaint is a broken promise, or a notice.
type Complaint struct {
	Key  Key
	What string
	// History is the latest requests and observations, oldest first.
	History []string
}

func (c Complaint) String() string {
	return fmt.Sprintf("%s: %s\n\t%s", c.Key, c.What, strings.Join(c.History, "\n\t"))
}

// entry is one work name, also when the work is created again: its counter never restarts.
type entry struct {
	// Requests to the hub: written is the highest counter that was sent, accepted the highest that the hub
	// accepted. ended is the highest counter at the last deletion: an object with at most this counter may disappear.
	written, accepted, ended int64
	deleted                  bool

	// The objects on the cluster. incarnation is the highest counter of the present object. seen is the highest of
	// all objects, and gone the highest of the last object that was deleted legitimately.
	present                 bool
	uid                     types.UID
	incarnation, seen, gone int64

	history []string
}

// historyLength bounds an entry's memory in a test that runs for hours.
const historyLength = 60

// NewHistory returns an empty History. now returns the time for its entries.
func NewHistory(now func() time.Time) *History {
	return &History{now: now, entries: map[Key]*entry{}}
}

func (l *History) entry(k Key) *entry {
	e := l.entries[k]
	if e == nil {
		e = &entry{}
		l.entries[k] = e
	}
	return e
}

func (l *History) note(e *entry, format string, args ...any) {
	e.history = append(e.history, l.now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
	if n := len(e.history) - historyLength; n > 0 {
		e.history = slices.Delete(e.history, 0, n)
	}
}

func (l *History) complain(k Key, e *entry, format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	l.note(e, "BROKEN: %s", what)
	l.complaints = append(l.complaints, Complaint{k, what, slices.Clone(e.history)})
}

// Next is called before a work is created or changed and returns the counter to
// write. The cluster may show it from now on, whatever the hub answers.
func (l *History) Next(k Key) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entry(k)
	e.written++
	e.deleted = false
	l.note(e, "write %d", e.written)
	return e.written
}

// Accepted is called when the hub has accepted a counter.
func (l *History) Accepted(k Key, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entry(k)
	e.accepted = n
	l.note(e, "the hub has %d", n)
}

// Deleting is called before a work is deleted: its object may disappear from now on.
func (l *History) Deleting(k Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entry(k)
	e.ended, e.deleted = e.written, true
	l.note(e, "delete at %d", e.written)
}

// Returns sets whether an object that was deleted legitimately may come back for a while. A broker that went
// back in time does not know the deletion until its source sends it again. Otherwise a return is a complaint.
func (l *History) Returns(allowed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mayReturn = allowed
}

// RecordObject records an object on a cluster.
func (l *History) RecordObject(k Key, uid types.UID, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen(k, uid, n)
}

func (l *History) seen(k Key, uid types.UID, n int64) {
	e := l.entry(k)
	l.events++
	if e.present && e.uid != uid {
		l.gone(k, e)
	}
	l.note(e, "seen %d (%s)", n, uid)
	returned := !e.present && n <= e.gone
	e.present, e.uid = true, uid
	switch {
	case n > e.written:
		l.complain(k, e, "has %d, which was never written", n)
	case returned && l.mayReturn:
		l.returns = append(l.returns, Complaint{k, fmt.Sprintf("came back with %d", n), slices.Clone(e.history)})
	case returned:
		l.complain(k, e, "came back with %d after it went at %d", n, e.gone)
	case n < e.incarnation:
		l.complain(k, e, "fell from %d to %d", e.incarnation, n)
	}
	e.incarnation, e.seen = max(e.incarnation, n), max(e.seen, n)
}

// Unreadable records an object with an unreadable counter.
func (l *History) Unreadable(k Key, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.complain(k, l.entry(k), "has %q where its counter was", text)
}

// RecordDeletion records the deletion of an object on a cluster.
func (l *History) RecordDeletion(k Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone(k, l.entry(k))
}

func (l *History) gone(k Key, e *entry) {
	l.events++
	l.note(e, "gone at %d", e.incarnation)
	if e.incarnation > e.ended {
		l.complain(k, e, "was deleted on the cluster at %d; on the hub it was not", e.incarnation)
	} else {
		e.gone = e.incarnation
	}
	e.present, e.incarnation = false, 0
}

// Listed records the complete list of a cluster's objects: an object that is not in the list is gone.
func (l *History) Listed(cluster string, objects map[string]Object) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k, e := range l.entries {
		if _, there := objects[k.Name]; k.Cluster == cluster && e.present && !there {
			l.gone(k, e)
		}
	}
	for name, o := range objects {
		l.seen(Key{cluster, name}, o.UID, o.Counter)
	}
}

// Object is an object on a cluster.
type Object struct {
	UID     types.UID
	Counter int64
}

// Complaints returns the complaints so far.
func (l *History) Complaints() []Complaint {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.complaints)
}

// Returned lists the returns that were allowed.
func (l *History) Returned() []Complaint {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.returns)
}

// Events is the number of changes that clusters have shown.
func (l *History) Events() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.events
}

// Progress returns the sums of the counters of the works that were not deleted: accepted by the hub, and seen
// on the clusters. While works are only changed, applied is the number of updates that arrived or were
// overtaken. accepted less applied is then the number in flight.
func (l *History) Progress() (accepted, applied int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.entries {
		if !e.deleted {
			accepted += e.accepted
			applied += min(e.seen, e.accepted)
		}
	}
	return accepted, applied
}

// want is the expected state of a work, and the last state that the watch saw.
type want struct {
	counter int64
	present bool // at the last event of the watch
	seen    int64
}

// wants returns the works that were not deleted, and those that were.
func (l *History) wants() (live map[Key]want, deleted map[Key]want) {
	l.mu.Lock()
	defer l.mu.Unlock()
	live, deleted = map[Key]want{}, map[Key]want{}
	for k, e := range l.entries {
		w := want{counter: e.accepted, present: e.present, seen: e.seen}
		if e.deleted {
			deleted[k] = w
		} else {
			live[k] = w
		}
	}
	return live, deleted
}

// history returns a copy of the history of one work.
func (l *History) history(k Key) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.entry(k).history)
}
