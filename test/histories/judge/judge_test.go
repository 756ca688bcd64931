package judge

import (
	"testing"
	"time"
)

// Events of the work w of cluster c. Each ends at its time in the list.

func write(version int64) Event { return Event{Kind: Write, Work: "w", Version: version, Acked: true} }
func deletion(version int64) Event {
	return Event{Kind: Write, Work: "w", Version: version, Deleted: true, Acked: true}
}
func read(version int64) Event {
	return Event{Kind: Read, Client: "reader", Work: "w", Version: version}
}
func report(number int) Event {
	return Event{Kind: Report, Client: "agent", Work: "w", Number: number, Acked: true}
}
func stored(version int64) Event {
	return Event{Kind: Stored, Cluster: "c", Work: "w", Version: version}
}
func readDeleted(version int64) Event {
	return Event{Kind: Read, Client: "reader", Work: "w", Version: version, Deleted: true}
}

func spec(version int64, revision uint64) Event {
	return Event{Kind: Spec, Client: "agent", Work: "w", Version: version, Revision: revision}
}

func specDeleted(version int64, revision uint64) Event {
	return Event{Kind: Spec, Client: "agent", Work: "w", Version: version, Revision: revision, Deleted: true}
}

func status(number int, revision uint64) Event {
	return Event{Kind: Status, Client: "source", Work: "w", Number: number, Revision: revision}
}

// about makes a status one of a version.
func about(version int64, e Event) Event { e.Version = version; return e }

// subscribe is a subscription with a cursor.
func subscribe(incarnation string, revision uint64, list bool) Event {
	return Event{Kind: Subscribe, Client: "agent", Incarnation: incarnation, Revision: revision, List: list}
}

func checkpoint(incarnation string, revision uint64) Event {
	return Event{Kind: Checkpoint, Client: "agent", Incarnation: incarnation, Revision: revision}
}

func failover(lossy bool, revision uint64) Event {
	return Event{Kind: Failover, Lossy: lossy, Revision: revision}
}

func held(version int64) Event {
	return Event{Kind: Held, Client: "agent", Cluster: "c", Work: "w", Version: version}
}

func known(version int64, number int) Event {
	return Event{Kind: Known, Client: "source", Work: "w", Version: version, Number: number}
}

func digest(client, digest string) Event {
	return Event{Kind: Digest, Client: client, Cluster: "c", Digest: digest}
}

var (
	agentComplete  = Event{Kind: Complete, Client: "agent", Cluster: "c"}
	sourceComplete = Event{Kind: Complete, Client: "source"}
)

// answered adds the revision of the answer to a publish.
func answered(e Event, revision uint64) Event { e.Revision = revision; return e }

// unanswered is a publish without an acknowledgement.
func unanswered(e Event) Event { e.Acked = false; return e }

// during lets an event begin with an earlier one of the list.
func during(e Event, from int) Event { e.From = at(from); return e }

// at is the time of the n-th event of a list, counted from 0.
func at(n int) time.Duration { return time.Duration(2*n+1) * time.Second }

func TestCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		history []Event
		want    Rule // of the one violation; "" is none
	}{
		"reads what was written":                {[]Event{read(0), write(1), read(1), write(2), read(2)}, ""},
		"reads an older version":                {[]Event{write(1), write(2), read(1)}, Register},
		"reads nothing after an answer":         {[]Event{write(1), read(0)}, Register},
		"reads a version that comes later":      {[]Event{write(1), read(2), write(2)}, Register},
		"reads back and forth":                  {[]Event{write(1), unanswered(write(2)), read(2), read(1)}, Register},
		"reads old and new beside a publish":    {[]Event{write(1), read(1), read(2), during(write(2), 1)}, ""},
		"a publish without an answer":           {[]Event{write(1), unanswered(write(2)), read(1), read(2)}, ""},
		"a publish that is never executed":      {[]Event{write(1), unanswered(write(2)), read(1)}, ""},
		"a publish that is repeated":            {[]Event{write(1), unanswered(write(2)), read(2), write(2), read(2)}, ""},
		"a late publish after a higher version": {[]Event{unanswered(write(1)), write(2), read(2)}, ""},
		"reads a deletion":                      {[]Event{write(1), deletion(2), readDeleted(2), read(0)}, ""},
		"lives after its deletion":              {[]Event{write(1), deletion(2), read(1)}, Register},
		"lives after it was collected":          {[]Event{unanswered(write(1)), write(2), deletion(3), read(0), read(1)}, Register},
		"deleted without a publish":             {[]Event{write(1), read(0)}, Register},
		"a loss":                                {[]Event{write(1), write(2), failover(true, 1), read(1), write(2), read(2)}, ""},
		"a loss undoes a deletion":              {[]Event{write(1), deletion(2), failover(true, 1), read(1)}, ""},
		"a loss by a safe failover":             {[]Event{write(1), write(2), failover(false, 2), read(1)}, Register},
		"a loss, and a late publish":            {[]Event{unanswered(write(2)), write(2), failover(true, 1), read(0), read(2)}, ""},

		"revisions in order":             {[]Event{answered(write(1), 5), answered(write(2), 6), answered(write(2), 6)}, ""},
		"revisions beside each other":    {[]Event{answered(write(1), 6), during(answered(write(2), 5), 0)}, ""},
		"an older revision":              {[]Event{answered(write(1), 6), answered(write(2), 5)}, CommitOrder},
		"an older revision after a loss": {[]Event{answered(write(1), 6), failover(true, 4), answered(write(2), 5)}, ""},

		"receives in order":                     {[]Event{write(1), write(2), deletion(3), spec(1, 1), spec(2, 2), specDeleted(3, 3), specDeleted(3, 3)}, ""},
		"receives an older version":             {[]Event{write(1), write(2), spec(2, 2), spec(1, 1)}, Forward},
		"an older version, newer revision":      {[]Event{write(1), write(2), spec(2, 2), spec(1, 3)}, Forward},
		"an older one after another cursor":     {[]Event{write(1), write(2), spec(2, 2), subscribe("a", 2, false), spec(1, 1)}, Forward},
		"an older one after a list":             {[]Event{write(1), write(2), spec(2, 2), subscribe("", 0, true), spec(1, 1)}, Forward},
		"an older one after a loss":             {[]Event{write(1), write(2), spec(2, 2), failover(true, 1), subscribe("", 0, true), spec(1, 1)}, ""},
		"an older one after a loss, at once":    {[]Event{write(1), deletion(2), specDeleted(2, 2), failover(true, 1), spec(1, 1)}, ""},
		"a lost one that arrives late":          {[]Event{write(1), write(2), failover(true, 1), spec(2, 2), subscribe("", 0, true), spec(1, 1)}, ""},
		"an older one that was not lost":        {[]Event{write(1), write(2), spec(2, 2), failover(true, 2), subscribe("", 0, true), spec(1, 1)}, Forward},
		"an older one after a safe failover":    {[]Event{write(1), write(2), spec(2, 2), failover(false, 1), subscribe("", 0, true), spec(1, 1)}, Forward},
		"receives a deleted work":               {[]Event{write(1), deletion(2), specDeleted(2, 2), spec(1, 3)}, Undone},
		"receives a spec without a publish":     {[]Event{spec(1, 1), write(1)}, Invented},
		"receives a deletion without a publish": {[]Event{write(1), spec(1, 1), specDeleted(2, 2)}, Invented},
		"receives reports in order":             {[]Event{report(1), report(2), status(1, 1), status(2, 2)}, ""},
		"receives an older report":              {[]Event{report(1), report(2), status(2, 2), status(1, 3)}, Forward},
		"a report about an older version":       {[]Event{write(1), write(2), report(1), report(2), about(2, status(1, 3)), about(1, status(2, 4))}, Forward},
		"about an older one after a loss":       {[]Event{answered(write(1), 1), answered(write(2), 2), failover(true, 1), report(1), report(2), about(2, status(1, 3)), about(1, status(2, 4))}, ""},
		"about an older one that was not lost":  {[]Event{answered(write(1), 1), answered(write(2), 2), failover(true, 2), report(1), report(2), about(2, status(1, 3)), about(1, status(2, 4))}, Forward},
		"about an older one before a loss":      {[]Event{answered(write(1), 1), answered(write(2), 2), report(1), report(2), about(2, status(1, 3)), about(1, status(2, 4)), failover(true, 1)}, Forward},
		"about one below what survived":         {[]Event{answered(write(1), 1), answered(write(2), 2), answered(write(3), 3), failover(true, 2), report(1), report(2), about(3, status(1, 4)), about(1, status(2, 5))}, Forward},
		"about an older one, a later survived":  {[]Event{answered(write(1), 1), unanswered(write(2)), answered(write(3), 3), failover(true, 3), report(1), report(2), about(2, status(1, 4)), about(1, status(2, 5))}, Forward},
		"about an older one, received before":   {[]Event{answered(write(1), 1), unanswered(write(2)), spec(2, 2), failover(true, 5), report(1), report(2), about(2, status(1, 6)), about(1, status(2, 7))}, Forward},
		"about an older one, received again":    {[]Event{answered(write(1), 1), answered(write(2), 2), failover(true, 1), answered(write(2), 2), spec(2, 2), report(1), report(2), about(2, status(1, 3)), about(1, status(2, 4))}, Forward},
		"about an older one, just before that":  {[]Event{answered(write(1), 1), answered(write(2), 2), failover(true, 1), report(1), report(2), about(2, status(1, 3)), answered(write(2), 2), spec(2, 2), about(1, status(2, 4))}, ""},
		"receives a report without a publish":   {[]Event{report(1), status(2, 2)}, Invented},

		"a cursor after a failover":       {[]Event{checkpoint("a", 3), failover(false, 3), subscribe("a", 3, false), checkpoint("b", 4)}, ""},
		"no new incarnation":              {[]Event{checkpoint("a", 3), failover(false, 3), subscribe("a", 3, false), checkpoint("a", 4)}, Cursors},
		"no commit since the failover":    {[]Event{checkpoint("a", 3), failover(false, 4), subscribe("a", 3, false), checkpoint("a", 4)}, ""},
		"a lost cursor":                   {[]Event{checkpoint("a", 5), failover(true, 3), subscribe("a", 5, true), checkpoint("b", 4)}, ""},
		"a lost cursor is continued":      {[]Event{checkpoint("a", 5), failover(true, 3), subscribe("a", 5, false), checkpoint("b", 6)}, Cursors},
		"a cursor from before the loss":   {[]Event{checkpoint("a", 3), failover(true, 3), subscribe("a", 3, false), checkpoint("b", 6)}, ""},
		"a checkpoint that was under way": {[]Event{checkpoint("a", 3), failover(true, 3), checkpoint("a", 5)}, ""},

		"ends with everything":                  {[]Event{write(1), write(2), stored(2), held(2), agentComplete}, ""},
		"ends without an answered version":      {[]Event{write(1), write(2), stored(1), held(1), agentComplete}, Acknowledged},
		"ends without an answered work":         {[]Event{write(1), agentComplete}, Acknowledged},
		"ends without a deleted work":           {[]Event{write(1), deletion(2), agentComplete}, ""},
		"ends with a deleted work":              {[]Event{write(1), deletion(2), stored(1), held(1), agentComplete}, Undone},
		"ends with a version without a publish": {[]Event{write(1), stored(2), held(2), agentComplete}, Invented},
		"ends with an unanswered version":       {[]Event{write(1), unanswered(write(2)), stored(2), held(2), agentComplete}, ""},
		"an agent lacks a version":              {[]Event{write(1), write(2), stored(2), held(1), agentComplete}, Converged},
		"an agent lacks a work":                 {[]Event{write(1), stored(1), agentComplete}, Converged},
		"an agent has a deleted work":           {[]Event{write(1), deletion(2), held(1), agentComplete}, Converged},
		"a source has the last report":          {[]Event{during(Event{Kind: Write, Client: "source", Work: "w", Version: 1, Acked: true}, 0), report(1), stored(1), known(1, 1), sourceComplete}, ""},
		"a source lacks the last report":        {[]Event{during(Event{Kind: Write, Client: "source", Work: "w", Version: 1, Acked: true}, 0), report(1), report(2), stored(1), known(1, 1), sourceComplete}, Converged},
		"equal digests":                         {[]Event{digest("a", "1"), digest("b", "1")}, ""},
		"different digests":                     {[]Event{digest("a", "1"), digest("b", "2")}, Digests},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range tc.history {
				e := &tc.history[i]
				e.To = at(i)
				if e.From == 0 {
					e.From = e.To - time.Second
				}
				if e.Kind == Write && e.Revision == 0 {
					e.Revision = 1
				}
			}
			found := Check(tc.history)
			switch {
			case tc.want == "" && len(found) > 0:
				t.Errorf("found %+v", found)
			case tc.want != "" && (len(found) != 1 || found[0].Rule != tc.want):
				t.Errorf("found %+v, want one of rule %q", found, tc.want)
			}
		})
	}
}
