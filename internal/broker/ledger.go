package broker

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// place is one cluster as one data type sees it.
type place struct {
	dataType codec.DataType
	cluster  string
}

func placeOf(k store.Key) place { return place{dataType: k.DataType, cluster: k.Cluster} }

func comparePlaces(a, b place) int {
	return cmp.Or(cmp.Compare(a.cluster, b.cluster), cmp.Compare(a.dataType.String(), b.dataType.String()))
}

// cause says what does not fit together.
type cause uint8

// The causes, in the order in which they are shown.
const (
	// causeOrphan: an agent lists the work, and no record explains it.
	causeOrphan cause = iota + 1
	// causeAhead: an agent lists a newer version of the work than the record's.
	causeAhead
	// causeWithheld: the source of the record lacks the work, and does not dare
	// to delete it.
	causeWithheld
	// causeStranger: an agent of another cluster comes under the name.
	causeStranger
)

// finding is something that does not fit together and is left alone.
type finding struct {
	place
	cause      cause
	resourceID string // "" of a stranger
	name       string // of the work; causeWithheld only, may be empty
	source     string // causeWithheld only
	revision   uint64 // of the record's spec; causeWithheld only
	detail     string // causeWithheld: the source's reason; causeStranger: the uid
}

// Bounds of what the ledger remembers. Beyond them it counts and does not name.
const (
	// listedBytes is for the ids of one list, all of which a checkpoint repeats.
	listedBytes = 1 << 20
	// ledgerBytes is for the ids of all lists.
	ledgerBytes = 64 << 20
	// strangerMemory is for how long a stranger that stays away is remembered;
	// one that is refused comes back every few minutes.
	strangerMemory = time.Hour
)

// ledger is what does not fit together, for whoever looks; an entry goes when
// its cause does. It lives in memory: lists and comparisons come again with
// the next connection. Its methods may be called concurrently, do no I/O and
// call nobody.
type ledger struct {
	// entries is the number of entries that a change of a record may end, so
	// that changes cost nothing while there are none.
	entries atomic.Int64

	mu        sync.Mutex
	bytes     int // of the ids in lists
	lists     map[place]*listed
	withheld  map[place]map[string]*withholding // by owner
	strangers map[place]stranger
}

// listed is what the last version list of a cluster had that does not fit.
type listed struct {
	orphans, ahead map[string]struct{}
	omitted        int // ids beyond the bounds
}

// withholding is what one source withholds on one cluster.
type withholding struct {
	subscription string // on which the source said so
	reason       string
	works        map[string]codec.WithheldDeletion // by id
}

type stranger struct {
	uid string
	at  time.Time
}

func newLedger() *ledger {
	return &ledger{
		lists: map[place]*listed{}, withheld: map[place]map[string]*withholding{}, strangers: map[place]stranger{},
	}
}

// list notes the outcome of comparing a version list of a cluster, in place of
// the one before.
func (l *ledger) list(p place, orphans, ahead []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old := l.lists[p]; old != nil {
		for id := range old.orphans {
			l.bytes -= len(id)
		}
		for id := range old.ahead {
			l.bytes -= len(id)
		}
		l.entries.Add(-int64(len(old.orphans) + len(old.ahead)))
		delete(l.lists, p)
	}
	if len(orphans)+len(ahead) == 0 {
		return
	}
	next := &listed{}
	room := min(listedBytes, ledgerBytes-l.bytes)
	take := func(ids []string) map[string]struct{} {
		set := make(map[string]struct{}, min(len(ids), room/16))
		for i, id := range ids {
			if len(id) > room {
				next.omitted += len(ids) - i
				break
			}
			room -= len(id)
			l.bytes += len(id)
			set[id] = struct{}{}
		}
		return set
	}
	next.orphans, next.ahead = take(orphans), take(ahead)
	l.entries.Add(int64(len(next.orphans) + len(next.ahead)))
	l.lists[p] = next
}

// agrees notes that an agent of the cluster holds exactly what the records say
// and the orphans: nothing there is ahead.
func (l *ledger) agrees(p place) {
	if l.entries.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if last := l.lists[p]; last != nil {
		for id := range last.ahead {
			l.drop(last.ahead, id)
		}
		l.tidy(p)
	}
}

// changed notes that the spec of a record is another one, or that the record is
// gone: it explains an orphan, and is no longer what a source withheld.
func (l *ledger) changed(k store.Key, revision uint64, gone bool) {
	if l.entries.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p := placeOf(k)
	if last := l.lists[p]; last != nil {
		if gone {
			l.drop(last.ahead, k.ResourceID)
		} else {
			l.drop(last.orphans, k.ResourceID)
		}
		l.tidy(p)
	}
	for owner, h := range l.withheld[p] {
		if w, ok := h.works[k.ResourceID]; ok && (gone || w.Revision != revision) {
			l.forget(p, owner, k.ResourceID)
		}
	}
}

// sentAnyway notes that a record goes to the agents although they were ahead.
func (l *ledger) sentAnyway(k store.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last := l.lists[placeOf(k)]; last != nil {
		l.drop(last.ahead, k.ResourceID)
		l.tidy(placeOf(k))
	}
}

func (l *ledger) drop(set map[string]struct{}, id string) {
	if _, ok := set[id]; ok {
		delete(set, id)
		l.bytes -= len(id)
		l.entries.Add(-1)
	}
}

func (l *ledger) tidy(p place) {
	if last := l.lists[p]; len(last.orphans)+len(last.ahead)+last.omitted == 0 {
		delete(l.lists, p)
	}
}

// withhold notes what a source withholds on a cluster, in place of what it
// withheld before; no works end it.
func (l *ledger) withhold(p place, owner, subscription, reason string, works []codec.WithheldDeletion) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old := l.withheld[p][owner]; old != nil {
		l.entries.Add(-int64(len(old.works)))
		l.removeOwner(p, owner)
	}
	if len(works) == 0 {
		return
	}
	h := &withholding{subscription: subscription, reason: reason, works: make(map[string]codec.WithheldDeletion, len(works))}
	for _, w := range works {
		h.works[w.ResourceID] = w
	}
	if l.withheld[p] == nil {
		l.withheld[p] = map[string]*withholding{}
	}
	l.withheld[p][owner] = h
	l.entries.Add(int64(len(h.works)))
}

// settle ends what a source said it withholds on any other subscription than
// this one: its comparison is complete, and it did not say so again.
func (l *ledger) settle(dt codec.DataType, owner, subscription string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p, owners := range l.withheld {
		if h := owners[owner]; h != nil && p.dataType == dt && h.subscription != subscription {
			l.entries.Add(-int64(len(h.works)))
			l.removeOwner(p, owner)
		}
	}
}

// withholds reports whether a source withholds the deletion of a work whose
// spec has this revision.
func (l *ledger) withholds(k store.Key, owner string, revision uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.withheld[placeOf(k)][owner]
	if h == nil {
		return false
	}
	w, ok := h.works[k.ResourceID]
	return ok && w.Revision == revision
}

// approved notes that withheld deletions were made after all.
func (l *ledger) approved(p place, owner string, ops []store.Op) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range ops {
		if l.withheld[p][owner] != nil {
			l.forget(p, owner, ops[i].Key.ResourceID)
		}
	}
}

// holdsBack reports whether a source withholds anything on a cluster.
func (l *ledger) holdsBack(p place, owner string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.withheld[p][owner] != nil
}

// countWithheld returns the number of works whose deletion is withheld.
func (l *ledger) countWithheld() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, owners := range l.withheld {
		for _, h := range owners {
			n += len(h.works)
		}
	}
	return n
}

func (l *ledger) forget(p place, owner, id string) {
	h := l.withheld[p][owner]
	if _, ok := h.works[id]; !ok {
		return
	}
	delete(h.works, id)
	l.entries.Add(-1)
	if len(h.works) == 0 {
		l.removeOwner(p, owner)
	}
}

func (l *ledger) removeOwner(p place, owner string) {
	delete(l.withheld[p], owner)
	if len(l.withheld[p]) == 0 {
		delete(l.withheld, p)
	}
}

// refused notes that an agent of another cluster came under the name.
func (l *ledger) refused(p place, uid string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.strangers[p] = stranger{uid: uid, at: now}
}

// stranger returns the uid of the cluster whose agent was refused under a name, ""
// if there is none, or it stays away.
func (l *ledger) stranger(p place, now time.Time) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s, ok := l.strangers[p]; ok && now.Sub(s.at) < strangerMemory {
		return s.uid
	}
	return ""
}

// renamed notes that the name may belong to another cluster now.
func (l *ledger) renamed(cluster string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.strangers {
		if p.cluster == cluster {
			delete(l.strangers, p)
		}
	}
}

// places returns, sorted, where there is something to show. cluster "" stands
// for every cluster.
func (l *ledger) places(cluster string) []place {
	l.mu.Lock()
	defer l.mu.Unlock()
	set := map[place]struct{}{}
	for p := range l.lists {
		set[p] = struct{}{}
	}
	for p := range l.withheld {
		set[p] = struct{}{}
	}
	for p := range l.strangers {
		set[p] = struct{}{}
	}
	var list []place
	for p := range set {
		if cluster == "" || p.cluster == cluster {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, comparePlaces)
	return list
}

// at returns what there is to show of one place, sorted by cause, source and
// id, and how many orphans and newer works there are beyond those.
func (l *ledger) at(p place, now time.Time) (found []finding, omitted int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last := l.lists[p]; last != nil {
		omitted = last.omitted
		for id := range last.orphans {
			found = append(found, finding{place: p, cause: causeOrphan, resourceID: id})
		}
		for id := range last.ahead {
			found = append(found, finding{place: p, cause: causeAhead, resourceID: id})
		}
	}
	for owner, h := range l.withheld[p] {
		for id, w := range h.works {
			found = append(found, finding{
				place: p, cause: causeWithheld, resourceID: id, name: w.Name, source: owner,
				revision: w.Revision, detail: h.reason,
			})
		}
	}
	if s, ok := l.strangers[p]; ok {
		if now.Sub(s.at) < strangerMemory {
			found = append(found, finding{place: p, cause: causeStranger, detail: s.uid})
		} else {
			delete(l.strangers, p)
		}
	}
	slices.SortFunc(found, func(a, b finding) int {
		return cmp.Or(cmp.Compare(a.cause, b.cause), cmp.Compare(a.source, b.source), cmp.Compare(a.resourceID, b.resourceID))
	})
	return found, omitted
}
