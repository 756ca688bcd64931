package broker

import (
	"time"

	"github.com/hawser-io/hawser/internal/broker/route"
)

// A stock agent that reports a work as gone forgets it when its report was
// answered. A spec of the same id or name that reaches it before that, because
// the work was created again, or should never have been deleted, is taken for
// the work that is going, and forgotten with it; so is another deletion of a
// newer version, which then nobody confirms. So what is of that id and name
// rests until a while after the answer. Hawser agents order by revision and need
// no such care.

// rests are the ids and names that rest at one subscription.
type rests struct {
	until map[restKey]time.Time
	// later are entries that were taken from the mailbox and have to rest.
	later []resting
	// look is when later has to be looked at again.
	look time.Time
}

// restKey is an id or a name.
type restKey struct{ id, name string }

type resting struct {
	route.Entry
	name string
}

// unanswered is the end of a rest that has not been set yet.
var unanswered = time.Unix(1<<40, 0)

// set lets a work rest until a time.
func (r *rests) set(id, name string, until time.Time) {
	if r.until == nil {
		r.until = map[restKey]time.Time{}
	}
	r.until[restKey{id: id}] = until
	if name != "" {
		r.until[restKey{name: name}] = until
	}
	if until.Before(r.look) {
		r.look = until
	}
}

// end returns until when a work rests; zero when it does not.
func (r *rests) end(id, name string, now time.Time) (end time.Time) {
	for _, k := range []restKey{{id: id}, {name: name}} {
		until, ok := r.until[k]
		switch {
		case !ok:
		case !now.Before(until):
			delete(r.until, k)
		case until.After(end):
			end = until
		}
	}
	return end
}

// keep holds an entry back whose work rests.
func (r *rests) keep(e route.Entry, name string, end time.Time) {
	if len(r.later) == 0 || end.Before(r.look) {
		r.look = end
	}
	r.later = append(r.later, resting{Entry: e, name: name})
}

// due takes out the entries whose works rest no longer, and forgets the rests
// that are over.
func (r *rests) due(now time.Time) (entries []route.Entry) {
	if len(r.later) == 0 || now.Before(r.look) {
		return nil
	}
	r.look = unanswered
	kept := r.later[:0]
	for _, l := range r.later {
		end := r.end(l.ResourceID, l.name, now)
		if end.IsZero() {
			entries = append(entries, l.Entry)
			continue
		}
		kept = append(kept, l)
		if end.Before(r.look) {
			r.look = end
		}
	}
	clear(r.later[len(kept):])
	r.later = kept
	return entries
}

// prune forgets rests that are over; it is called now and then.
func (r *rests) prune(now time.Time) {
	for k, until := range r.until {
		if !now.Before(until) {
			delete(r.until, k)
		}
	}
}
