package core

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/resync"
	"github.com/hawser-io/hawser/pkg/codec"
)

// hubEpochs is the known history of the hub, and the state that the source saves on the hub for the next
// process.
//
// A hub that was restored from a backup lacks works that were not deleted, and has others in an older state.
// Everything read before the restore is invalid: a hub epoch has ended. First the rollback suspicion is saved
// on the hub, so that the next process knows of it whatever happens. Then new informers read everything again.
// The suspicion names the position at which it was found, so that a known suspicion ends no other epoch. While
// it lasts, nothing is deleted because it is missing. It ends when a comparison finds that nothing is missing
// and the broker knows the position of the hub.
type hubEpochs struct {
	f      *workIndex
	cursor *cursor

	// over: the present epoch has ended; nothing is decided in it any more.
	over bool
	// position is the last read position of the hub. It was read on subscription positionReadOn. due: it has to
	// be read again. Only the answer of the present attempt is valid. queriedAt limits how often the hub is
	// queried.
	position       *codec.HubPosition
	newest         string // newest resource version that the hub has shown in this epoch
	first          string // resource version of the first position in this epoch
	positionReadOn int
	attempt        int
	due            bool
	queriedAt      time.Time
	retry          retry

	// withheld are the clusters under rollback suspicion, [everywhere] included; reason is why. trusted and
	// against are ClearedPosition and SuspectedPosition of [SavedState].
	withheld         map[string]bool
	reason           string
	trusted, against *codec.HubPosition

	// saved is the state on the hub. savedAt limits how often the state is saved if only the cursor changed.
	saved     SavedState
	savedAt   time.Time
	saveRetry retry
}

const (
	// readPositionEvery is the shortest time between two reads of the position while the hub changes.
	readPositionEvery = time.Minute
	// saveEvery is the shortest time between two saves of the cursor alone.
	saveEvery = 5 * time.Second
	// informerLag is how long the informer may show an older state than the hub itself returned. After that the hub
	// is queried again.
	informerLag = 10 * time.Second
)

// reasonKept is the reason of a suspicion that an earlier process saved.
const reasonKept = "deletions were withheld before, and works may still be missing on the hub"

func newHubEpochs(f *workIndex, cursor *cursor, s SavedState, reason string) *hubEpochs {
	l := &hubEpochs{f: f, cursor: cursor, withheld: map[string]bool{}, reason: reason, trusted: s.ClearedPosition, against: s.SuspectedPosition, saved: s}
	for _, name := range s.Withheld {
		l.withheld[name] = true
	}
	return l
}

// state returns the state to save, and whether it differs from the saved one.
func (l *hubEpochs) state() (s SavedState, unsaved bool) {
	s = SavedState{Withheld: withheldOf(l.withheld), ClearedPosition: l.trusted, SuspectedPosition: l.against, Version: l.saved.Version}
	if bare := l.saved.Version != "" && l.saved.Cursor == ""; !l.over && (!bare || l.positionRead()) {
		s.Cursor = l.cursor.at() // otherwise statuses up to the cursor may be lost
	}
	return s, !s.equal(l.saved)
}

// nextSave decides whether to save the state on the hub.
func (l *hubEpochs) nextSave() *todo {
	s, unsaved := l.state()
	if !unsaved {
		return nil
	}
	onlyCursor := s
	onlyCursor.Cursor = l.saved.Cursor
	if onlyCursor.equal(l.saved) && !l.over && l.f.until(HubQueue, Key{}, l.savedAt.Add(saveEvery)) {
		return nil
	}
	if !l.f.due(HubQueue, Key{}, &l.saveRetry) {
		return nil
	}
	over := l.over
	return &todo{Save{State: s}, func(r Result) { l.doneSave(s, over, r) }}
}

// doneSave handles the result of a save; over: the epoch had ended before the save began.
func (l *hubEpochs) doneSave(s SavedState, over bool, r Result) {
	if l.savedAt = l.f.Now(); r.Err != nil {
		switch {
		case apierrors.IsConflict(r.Err):
			// Only leaders of this source write the saved state, one at a time. So a conflict shows that the hub
			// was replaced. It may be an old backup followed by a newer one, which no position shows.
			l.endEpoch("the stored state of this source is not the one that was written last")
		case apierrors.IsNotFound(r.Err):
			l.saved = SavedState{Version: l.saved.Version} // the hub may have gone back in time; its position is read
			l.readPositionNow()
		}
		l.f.hubFailed(HubQueue, Key{}, &l.saveRetry, r.Err)
		return
	}
	l.keeps(r.Kept)
	if over != l.over {
		l.f.wake(HubQueue, Key{}, 0)
		return // the save may have reached the hub before it went back
	}
	if s.suspectsAll() && !l.saved.suspectsAll() {
		// This save has increased the resource version of the hub. So the position at the end of the suspicion is
		// new to every broker.
		l.readPositionNow()
	}
	l.saved = s
	l.saved.Version = r.Kept
	l.saveRetry.reset()
	l.f.wake(HubQueue, Key{}, 0)
}

// keeps compares the resource version of the saved state with the known one. A rollback takes that object back
// too, even if all objects shown in this epoch are later.
func (l *hubEpochs) keeps(version string) {
	if known := l.saved.Version; known != "" && (version == "" || olderVersion(version, known)) {
		l.endEpoch("the stored state of this source is older than it was before, or missing")
	}
}

// ended reports whether the present epoch is over and its suspicion is saved. Then the next epoch may begin.
func (l *hubEpochs) ended() bool {
	_, unsaved := l.state()
	return l.over && !unsaved
}

// end ends the present epoch: the hub is in an earlier state than before. against is the position that shows
// this, nil if no position does.
func (l *hubEpochs) end(reason string, against *codec.HubPosition) {
	if l.over {
		return
	}
	l.over = true
	l.saved = SavedState{} // the saved state may have gone back too; the new save increases the hub's resource version, see doneSave
	l.suspectRollback(reason)
	if l.against == nil || against != nil && !covers(l.against, against) {
		l.against = against
	}
	l.f.wake(HubQueue, Key{}, 0)
}

// endEpoch ends the epoch if reason is not "": the hub contradicts what it returned before.
func (l *hubEpochs) endEpoch(reason string) {
	switch {
	case reason == "":
	case l.position == nil:
		l.end(reason, nil)
	default:
		l.end(reason, &codec.HubPosition{UID: l.position.UID, ResourceVersion: l.newest})
	}
}

// suspicionIsSaved reports whether the suspicion is stored on the hub. Only then may anything be written that
// hides the rollback; otherwise the epoch ends.
func (l *hubEpochs) suspicionIsSaved(reason string) bool {
	if !l.saved.suspectsAll() {
		l.end(reason, nil)
		return false
	}
	return true
}

// suspectRollback records that the hub may lack works that were not deleted.
func (l *hubEpochs) suspectRollback(reason string) {
	if l.withheld[everywhere] && l.reason != reasonKept {
		return
	}
	l.reason, l.withheld = reason, map[string]bool{everywhere: true}
	l.f.wake(HubQueue, Key{}, 0)
}

// rollbackSuspicion returns why nothing is deleted on a cluster because it is missing, "" without such a
// suspicion. For [everywhere] it returns the suspicion about the whole hub.
func (l *hubEpochs) rollbackSuspicion(cluster string) string {
	switch {
	case !l.withheld[cluster]:
		return ""
	case cluster == everywhere:
		return l.reason
	}
	return reasonKept
}

// suspicionOfMissing returns why no missing work of a cluster is deleted, given how many of its works are
// missing on the hub. It returns "" without a suspicion.
func (l *hubEpochs) suspicionOfMissing(cluster string, missing, live int) string {
	if reason := l.rollbackSuspicion(everywhere); reason != "" {
		return reason
	}
	if !resync.MayDelete(missing, live) {
		l.suspectCluster(cluster)
		return fmt.Sprintf("%d of %d works are missing on the hub at once", missing, live)
	}
	return l.rollbackSuspicion(cluster)
}

// suspectCluster withholds deletions on one cluster, also of works that go missing later.
func (l *hubEpochs) suspectCluster(cluster string) {
	l.withheld[cluster] = true
	l.f.wake(HubQueue, Key{}, 0)
}

// clearSuspicion ends the suspicion about a cluster when nothing is missing there.
func (l *hubEpochs) clearSuspicion(cluster string) {
	if l.withheld[cluster] {
		delete(l.withheld, cluster)
		l.f.wake(HubQueue, Key{}, 0)
	}
}

// clearAllSuspicions ends all suspicions: nothing is missing anywhere, and the broker knows the present
// position of the hub.
func (l *hubEpochs) clearAllSuspicions(reported *codec.HubPosition) {
	if l.withheld[everywhere] {
		l.trusted = reported
	}
	if len(l.withheld) > 0 {
		clear(l.withheld)
		l.f.wake(HubQueue, Key{}, 0)
	}
	l.reason, l.against = reasonKept, nil
}

// isSuspected reports whether deletions are withheld anywhere.
func (l *hubEpochs) isSuspected() bool { return len(l.withheld) > 0 }

// locateOn makes a read of the hub's position due at once on a new subscription.
//
// Scenario:
//
//	t1: a work changes, so the broker is to get the position of the hub within a minute.
//	t2: the broker restarts.
//
// Without this: until the next read of the position, nothing is deleted or evicted because it is missing.
func (l *hubEpochs) locateOn(compared bool) { l.due, l.retry = compared, retry{} }

// positionRead reports whether the hub's position is known on this subscription.
func (l *hubEpochs) positionRead() bool { return l.positionReadOn == l.f.sub }

// nextReadPosition decides whether to read the position of the hub.
func (l *hubEpochs) nextReadPosition() *todo {
	if !l.due || !l.f.connected || !l.f.due(HubQueue, Key{}, &l.retry) {
		return nil
	}
	newest, attempt, sub := l.newest, l.attempt, l.f.sub
	return &todo{ReadHubPosition{}, func(r Result) {
		switch {
		case sub != l.f.sub: // a new subscription needs a new position
		case r.Err != nil || r.Position == nil:
			l.f.hubFailed(HubQueue, Key{}, &l.retry, r.Err)
		default:
			l.doneReadPosition(newest, attempt != l.attempt, r)
		}
	}}
}

// doneReadPosition handles the position of the hub. newest is the newest version that the hub had shown when
// the read began; again: the position must be read once more.
func (l *hubEpochs) doneReadPosition(newest string, again bool, r Result) {
	before, requestedAt := l.position, l.queriedAt
	l.position, l.queriedAt = r.Position, l.f.Now()
	l.first = cmp.Or(l.first, r.Position.ResourceVersion)
	l.retry.reset()
	if l.due = again; !again {
		l.positionReadOn = l.f.sub
	}
	shown := &codec.HubPosition{UID: r.Position.UID, ResourceVersion: newest}
	for _, p := range []*codec.HubPosition{shown, before} {
		if reason := l.beforeThat(p); reason != "" {
			l.end(reason, p)
		}
	}
	l.keeps(r.Kept)
	if l.newest == newest {
		l.newest = r.Position.ResourceVersion
	} else if !l.due && laterThan(&codec.HubPosition{ResourceVersion: l.newest}, r.Position) {
		// An object that came during the read may be later than the position, or from before the rollback.
		l.readPositionAt(requestedAt.Add(readPositionEvery))
	}
	l.f.wake(HubQueue, Key{}, 0)
}

// isSince reports whether a state of a work is later than the first position that this leader read.
func (l *hubEpochs) isSince(o *workv1.ManifestWork) bool {
	return olderVersion(l.first, o.ResourceVersion)
}

// checkPosition compares the position of the hub with the last one that the broker knows. Earlier reads of this
// process may be from before a rollback.
func (l *hubEpochs) checkPosition(last *codec.HubPosition) {
	reason := l.beforeThat(last)
	if reason == "" || l.saved.suspectsAll() && l.saved.SuspectedPosition != nil && covers(l.saved.SuspectedPosition, last) {
		return
	}
	l.end(reason, last)
}

// checkStore checks whether the broker's store is older than the end of the last rollback suspicion. last is
// the last position that the broker knows. Such a store may contain works that the hub lost, and whose records
// were removed since.
func (l *hubEpochs) checkStore(last *codec.HubPosition) {
	if l.trusted == nil || last != nil && last.UID == l.trusted.UID && !laterThan(l.trusted, last) {
		return
	}
	l.suspectRollback("the hub went back in time before, and the broker's store is from before the end of that suspicion")
}

// beforeThat returns why the present position of the hub cannot follow other. It returns "" if it can, or if
// other is nil.
func (l *hubEpochs) beforeThat(other *codec.HubPosition) string {
	switch now := l.position; {
	case other == nil:
		return ""
	case other.UID != now.UID:
		return fmt.Sprintf("the hub is not the same as before: its uid is %s, not %s", now.UID, other.UID)
	case laterThan(other, now):
		return fmt.Sprintf("the hub went back in time: its resource version is %s, and was %s before", now.ResourceVersion, other.ResourceVersion)
	}
	return ""
}

// covers reports whether a suspicion found at position against also covers p.
func covers(against, p *codec.HubPosition) bool {
	return against.UID == p.UID && !laterThan(p, against)
}

// laterThan reports whether a is later than b; both are positions of one hub.
func laterThan(a, b *codec.HubPosition) bool {
	return olderVersion(b.ResourceVersion, a.ResourceVersion)
}

func samePosition(a, b *codec.HubPosition) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// readPositionNow reads the position of the hub before anything is deleted because it is missing.
func (l *hubEpochs) readPositionNow() {
	l.attempt++
	l.due, l.positionReadOn = true, 0
	l.retry.reset()
	l.f.wake(HubQueue, Key{}, 0)
}

// shown records the newest resource version that the hub has shown.
func (l *hubEpochs) shown(o *workv1.ManifestWork) {
	if l.newest == "" || olderVersion(l.newest, o.ResourceVersion) {
		l.newest = o.ResourceVersion
	}
}

// moved records a change on the hub, so that the broker gets the position of the hub within readPositionEvery.
func (l *hubEpochs) moved(o *workv1.ManifestWork) {
	l.shown(o)
	if l.f.connected && !l.due && l.positionRead() {
		l.readPositionAt(l.queriedAt.Add(readPositionEvery))
	}
}

func (l *hubEpochs) readPositionAt(at time.Time) {
	l.due = true
	l.retry.wait(at, false)
	l.f.wakeAt(HubQueue, Key{}, at)
}

// SavedState is the state that a source keeps on its hub from one process to the next. A rollback of the hub
// takes it back too, and so the rollback becomes visible.
type SavedState struct {
	// Cursor is the position in the broker's stream up to which all statuses are on the hub, "" if it is unknown.
	Cursor string
	// Withheld names the clusters on which nothing is deleted because the hub lacks it. A name stays until a
	// comparison finds nothing missing there. [everywhere] stands for all clusters. Sorted.
	Withheld []string
	// ClearedPosition is the position of the hub that was reported to the broker at the end of the last suspicion
	// about the whole hub. It is nil if there was none. A store of the broker that does not know this position is
	// older than that end.
	ClearedPosition *codec.HubPosition
	// SuspectedPosition is the position at which the suspicion about the whole hub was found. Another position
	// causes a new suspicion only if it is later. It is nil without such a suspicion, or if no position showed
	// it.
	SuspectedPosition *codec.HubPosition
	// Version is the resource version of this state on the hub, "" if it is not there or unknown.
	Version string
}

// everywhere stands for all clusters in SavedState.Withheld. No cluster has this name.
const everywhere = "*"

// maxWithheld limits the clusters that a SavedState names. A ConfigMap has space for a few more. Beyond it,
// [everywhere] is saved.
const maxWithheld = 2000

// Keys of a SavedState in a ConfigMap.
const (
	keyCursor            = "cursor"
	keyWithheld          = "withheld"
	keyClearedPosition   = "cleared-position"
	keySuspectedPosition = "suspected-position"
)

// The keys of releases before cleared-position and suspected-position, which [StateOf] reads. A source writes
// the whole ConfigMap with each change of the state, as of its cursor. So the release after the first one that
// writes the new keys can remove these keys.
const formerClearedPosition, formerSuspectedPosition = "settled", "against"

// Data returns the state as the data of a ConfigMap.
func (s SavedState) Data() map[string]string {
	data := map[string]string{}
	if s.Cursor != "" {
		data[keyCursor] = s.Cursor
	}
	if len(s.Withheld) > 0 {
		data[keyWithheld] = strings.Join(s.Withheld, "\n")
	}
	for key, p := range map[string]*codec.HubPosition{keyClearedPosition: s.ClearedPosition, keySuspectedPosition: s.SuspectedPosition} {
		if p != nil {
			data[key] = p.UID + "\n" + p.ResourceVersion
		}
	}
	return data
}

// StateOf reads the data of a ConfigMap. It ignores unknown keys.
func StateOf(data map[string]string) SavedState {
	return SavedState{
		Cursor: data[keyCursor], Withheld: slices.Compact(slices.Sorted(strings.FieldsSeq(data[keyWithheld]))),
		ClearedPosition: positionOf(cmp.Or(data[keyClearedPosition], data[formerClearedPosition])), SuspectedPosition: positionOf(cmp.Or(data[keySuspectedPosition], data[formerSuspectedPosition])),
	}
}

func positionOf(text string) *codec.HubPosition {
	uid, version, ok := strings.Cut(text, "\n")
	if !ok {
		return nil
	}
	return &codec.HubPosition{UID: uid, ResourceVersion: version}
}

// suspectsAll reports whether deletions are withheld on all clusters.
func (s SavedState) suspectsAll() bool { return len(s.Withheld) > 0 && s.Withheld[0] == everywhere }

// equal reports whether s has nothing new to save compared with t.
func (s SavedState) equal(t SavedState) bool {
	return s.Cursor == t.Cursor && slices.Equal(s.Withheld, t.Withheld) &&
		samePosition(s.ClearedPosition, t.ClearedPosition) && samePosition(s.SuspectedPosition, t.SuspectedPosition)
}

// withheldOf returns the sorted names of the set for a SavedState.
func withheldOf(set map[string]bool) []string {
	if set[everywhere] || len(set) > maxWithheld {
		return []string{everywhere}
	}
	return slices.Sorted(maps.Keys(set))
}
