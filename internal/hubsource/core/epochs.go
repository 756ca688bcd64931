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

// hubEpochs is what the source knows of its hub's history, and what it leaves there
// for the next process.
//
// A hub that was restored from a backup lacks works that nobody deleted, and has
// others as they once were. What was read of it before says nothing any more: a
// life of the hub has ended. First the doubt is saved on the hub, so that
// whatever is done later the next process knows of it; then the informers are
// made anew, and everything is read again. The doubt names the position that it
// was found against, so that a doubt which is known ends no other life. As long
// as it lasts, nothing is deleted because it is missing; it ends when a comparison
// finds that nothing is missing any more and the broker knows where the hub is.
type hubEpochs struct {
	f      *workIndex
	cursor *cursor

	// over: the present life has ended; nothing is decided in it any more.
	over bool
	// position is where the hub was when it was last asked, on subscription
	// positionReadOn; due: it is to be asked again. An answer counts that was asked for
	// in the present attempt. asked bounds how often.
	position       *codec.HubPosition
	newest         string // resource version of all that the hub has shown in this life
	first          string // that of the first position in this life
	positionReadOn int
	attempt        int
	due            bool
	queriedAt      time.Time
	retry          retry

	// withheld are the clusters in doubt, everywhere included; reason is why
	// that is.
	withheld         map[string]bool
	reason           string
	trusted, against *codec.HubPosition

	// saved is on the hub. savedAt bounds how often it is written for a cursor
	// alone.
	saved     SavedState
	savedAt   time.Time
	saveRetry retry
}

const (
	// readPositionEvery is how often a hub on which something happens is asked how
	// far it has come.
	readPositionEvery = time.Minute
	// saveEvery is how often the cursor is saved.
	saveEvery = 5 * time.Second
	// informerLag is how long the informer may show something older than what the
	// hub itself said before the hub is asked again.
	informerLag = 10 * time.Second
)

// reasonKept is the reason of a doubt that an earlier process had.
const reasonKept = "deletions were withheld before, and what is missing on the hub has not been settled since"

func newHubEpochs(f *workIndex, cursor *cursor, s SavedState, reason string) *hubEpochs {
	l := &hubEpochs{f: f, cursor: cursor, withheld: map[string]bool{}, reason: reason, trusted: s.ClearedPosition, against: s.SuspectedPosition, saved: s}
	for _, name := range s.Withheld {
		l.withheld[name] = true
	}
	return l
}

// state returns what is to be saved, and whether that is something new.
func (l *hubEpochs) state() (s SavedState, unsaved bool) {
	s = SavedState{Withheld: withheldOf(l.withheld), ClearedPosition: l.trusted, SuspectedPosition: l.against, Version: l.saved.Version}
	if bare := l.saved.Version != "" && l.saved.Cursor == ""; !l.over && (!bare || l.positionRead()) {
		s.Cursor = l.cursor.at() // else what was written up to there may be there no more
	}
	return s, !s.equal(l.saved)
}

// nextSave decides about keeping the state on the hub.
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

// doneSave takes the answer to a save; over: the life had ended.
func (l *hubEpochs) doneSave(s SavedState, over bool, r Result) {
	if l.savedAt = l.f.Now(); r.Err != nil {
		switch {
		case apierrors.IsConflict(r.Err):
			// Nobody else writes it but another leader just before. So the hub is another
			// one: also one that was restored to an old backup and then to a newer one,
			// which none of its positions shows.
			l.endEpoch("what the hub keeps for this source is not what was written last")
		case apierrors.IsNotFound(r.Err):
			l.saved = SavedState{Version: l.saved.Version} // it may have gone back; the hub is asked
			l.readPositionNow()
		}
		l.f.hubFailed(HubQueue, Key{}, &l.saveRetry, r.Err)
		return
	}
	l.keeps(r.Kept)
	if over != l.over {
		l.f.wake(HubQueue, Key{}, 0)
		return // it may have been before the hub went back
	}
	if s.suspectsAll() && !l.saved.suspectsAll() {
		// The hub has moved on with that, so that where it is when the doubt ends is
		// none of the positions that a broker may have been told before.
		l.readPositionNow()
	}
	l.saved = s
	l.saved.Version = r.Kept
	l.saveRetry.reset()
	l.f.wake(HubQueue, Key{}, 0)
}

// keeps takes the resource version of what the hub keeps for this source. That went
// back with it, also where all that informers have shown in this life came later.
func (l *hubEpochs) keeps(version string) {
	if known := l.saved.Version; known != "" && (version == "" || olderVersion(version, known)) {
		l.endEpoch("what the hub keeps for this source is older than it was, or gone")
	}
}

// ended reports whether the present life is over and its doubt is saved: the next
// one may begin.
func (l *hubEpochs) ended() bool {
	_, unsaved := l.state()
	return l.over && !unsaved
}

// end ends the present life: the hub is in an earlier state than it was. against
// is the position that shows it, nil where that is none.
func (l *hubEpochs) end(reason string, against *codec.HubPosition) {
	if l.over {
		return
	}
	l.over = true
	l.saved = SavedState{} // it may have gone back too; and the hub has to move on, see doneSave
	l.suspectRollback(reason)
	if l.against == nil || against != nil && !covers(l.against, against) {
		l.against = against
	}
	l.f.wake(HubQueue, Key{}, 0)
}

// endEpoch ends the life in which the hub contradicts itself.
func (l *hubEpochs) endEpoch(reason string) {
	switch {
	case reason == "":
	case l.position == nil:
		l.end(reason, nil)
	default:
		l.end(reason, &codec.HubPosition{UID: l.position.UID, ResourceVersion: l.newest})
	}
}

// suspicionIsSaved reports whether it is known on the hub that it went back in time, so
// that what hides it may be done. If not, the life ends.
func (l *hubEpochs) suspicionIsSaved(reason string) bool {
	if !l.saved.suspectsAll() {
		l.end(reason, nil)
		return false
	}
	return true
}

// suspectRollback takes it that works may be missing which nobody deleted.
func (l *hubEpochs) suspectRollback(reason string) {
	if l.withheld[everywhere] && l.reason != reasonKept {
		return
	}
	l.reason, l.withheld = reason, map[string]bool{everywhere: true}
	l.f.wake(HubQueue, Key{}, 0)
}

// rollbackSuspicion returns why nothing may be deleted on a cluster, or everywhere, because it
// is missing, "" when there is no such doubt of its own.
func (l *hubEpochs) rollbackSuspicion(cluster string) string {
	switch {
	case !l.withheld[cluster]:
		return ""
	case cluster == everywhere:
		return l.reason
	}
	return reasonKept
}

// suspicionOfMissing is why nothing of a cluster is deleted of whose works so many are missing on the hub, "" for no doubt.
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

// suspectCluster withholds deletions on one cluster, whatever is missing there later.
func (l *hubEpochs) suspectCluster(cluster string) {
	l.withheld[cluster] = true
	l.f.wake(HubQueue, Key{}, 0)
}

// clearSuspicion ends that when nothing is missing on the cluster any more.
func (l *hubEpochs) clearSuspicion(cluster string) {
	if l.withheld[cluster] {
		delete(l.withheld, cluster)
		l.f.wake(HubQueue, Key{}, 0)
	}
}

// clearAllSuspicions ends all doubt: nothing is missing anywhere, and the broker knows
// where the hub is now.
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

// locateOn has the hub located on a new subscription, at once.
//
//	t1 a work changes, so the broker is to be told within a minute how far the hub has come, t2 the broker goes
//	and comes back: until the hub is located again nothing is deleted or evicted because it is missing
func (l *hubEpochs) locateOn(compared bool) { l.due, l.retry = compared, retry{} }

// positionRead reports whether the hub's position is known on this subscription.
func (l *hubEpochs) positionRead() bool { return l.positionReadOn == l.f.sub }

// nextReadPosition decides about asking the hub how far it has come.
func (l *hubEpochs) nextReadPosition() *todo {
	if !l.due || !l.f.connected || !l.f.due(HubQueue, Key{}, &l.retry) {
		return nil
	}
	newest, attempt, sub := l.newest, l.attempt, l.f.sub
	return &todo{ReadHubPosition{}, func(r Result) {
		switch {
		case sub != l.f.sub: // it is asked once more
		case r.Err != nil || r.Position == nil:
			l.f.hubFailed(HubQueue, Key{}, &l.retry, r.Err)
		default:
			l.doneReadPosition(newest, attempt != l.attempt, r)
		}
	}}
}

// doneReadPosition takes where the hub is, which had shown up to newest when it was asked.
// again: it has to be asked once more.
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
		// What came while the hub was asked may be later than its answer, or from
		// before it went back.
		l.readPositionAt(requestedAt.Add(readPositionEvery))
	}
	l.f.wake(HubQueue, Key{}, 0)
}

// isSince reports whether a state of a work is from after this leader first located the hub.
func (l *hubEpochs) isSince(o *workv1.ManifestWork) bool {
	return olderVersion(l.first, o.ResourceVersion)
}

// checkPosition compares where the hub is with what the broker knows of it. What this
// process has read of the hub may be from before it went back.
func (l *hubEpochs) checkPosition(last *codec.HubPosition) {
	reason := l.beforeThat(last)
	if reason == "" || l.saved.suspectsAll() && l.saved.SuspectedPosition != nil && covers(l.saved.SuspectedPosition, last) {
		return
	}
	l.end(reason, last)
}

// checkStore takes what the broker knows of the hub, for whether its store is from
// before the last doubt about the hub ended: then it may have works again that the
// hub lost, and whose records it had let go of since.
func (l *hubEpochs) checkStore(last *codec.HubPosition) {
	if l.trusted == nil || last != nil && last.UID == l.trusted.UID && !laterThan(l.trusted, last) {
		return
	}
	l.suspectRollback("the hub went back in time before, and the broker's store is from before all that it lacked then was settled")
}

// beforeThat returns why the hub's present position cannot come after another
// one; "" if it can, or if that one is not known.
func (l *hubEpochs) beforeThat(other *codec.HubPosition) string {
	switch now := l.position; {
	case other == nil:
		return ""
	case other.UID != now.UID:
		return fmt.Sprintf("the hub is another one than before: its uid is %s, not %s", now.UID, other.UID)
	case laterThan(other, now):
		return fmt.Sprintf("the hub went back in time: its resource version is %s, and was %s before", now.ResourceVersion, other.ResourceVersion)
	}
	return ""
}

// covers reports whether a doubt that was found against one position says
// nothing new of another.
func covers(against, p *codec.HubPosition) bool {
	return against.UID == p.UID && !laterThan(p, against)
}

// laterThan compares positions of one hub.
func laterThan(a, b *codec.HubPosition) bool {
	return olderVersion(b.ResourceVersion, a.ResourceVersion)
}

func samePosition(a, b *codec.HubPosition) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// readPositionNow has the hub asked before anything is deleted because it is missing.
func (l *hubEpochs) readPositionNow() {
	l.attempt++
	l.due, l.positionReadOn = true, 0
	l.retry.reset()
	l.f.wake(HubQueue, Key{}, 0)
}

// shown notes how far the hub has come at least.
func (l *hubEpochs) shown(o *workv1.ManifestWork) {
	if l.newest == "" || olderVersion(l.newest, o.ResourceVersion) {
		l.newest = o.ResourceVersion
	}
}

// moved notes that something happened on the hub, so that the broker is told
// before long how far the hub has come.
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

// SavedState is what a source keeps on its hub from one process to the next. It goes
// back in time together with the hub, which is what makes it useful.
type SavedState struct {
	// Cursor is how far the statuses of the broker's stream are on the hub, ""
	// when that is not known.
	Cursor string
	// Withheld names the clusters on which nothing is deleted because the hub
	// lacks it, until a comparison finds that nothing is missing there any more;
	// [everywhere] stands for all. Sorted.
	Withheld []string
	// ClearedPosition is the position of the hub that the broker was told when the last
	// doubt about the hub as a whole had ended, nil when there never was one. A
	// broker's store that does not know it is from before that.
	ClearedPosition *codec.HubPosition
	// SuspectedPosition is the position that the doubt about the hub as a whole was found
	// against: one that is not later says nothing new. nil when there is no such
	// doubt, or none of a position.
	SuspectedPosition *codec.HubPosition
	// Version is the resource version under which the hub keeps all that, "" when it
	// does not, or nobody knows.
	Version string
}

// everywhere in SavedState.Withheld are all clusters. It is no cluster's name.
const everywhere = "*"

// maxWithheld is how many clusters are told apart in a State; a ConfigMap has
// room for a few more.
const maxWithheld = 2000

// The keys of a State in a ConfigMap.
const (
	keyCursor            = "cursor"
	keyWithheld          = "withheld"
	keyClearedPosition   = "cleared-position"
	keySuspectedPosition = "suspected-position"
)

// The keys of releases before cleared-position and suspected-position, which [StateOf] reads. They go with
// the release after the first one that writes the new keys: a source writes the whole ConfigMap with each
// change of the state, as of its cursor.
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

// StateOf reads the data of a ConfigMap. What it does not know, it ignores.
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

// suspectsAll reports whether nothing is deleted anywhere.
func (s SavedState) suspectsAll() bool { return len(s.Withheld) > 0 && s.Withheld[0] == everywhere }

// equal reports whether there is nothing new to save in s.
func (s SavedState) equal(t SavedState) bool {
	return s.Cursor == t.Cursor && slices.Equal(s.Withheld, t.Withheld) &&
		samePosition(s.ClearedPosition, t.ClearedPosition) && samePosition(s.SuspectedPosition, t.SuspectedPosition)
}

// withheldOf returns the names of the set for a State.
func withheldOf(set map[string]bool) []string {
	if set[everywhere] || len(set) > maxWithheld {
		return []string{everywhere}
	}
	return slices.Sorted(maps.Keys(set))
}
