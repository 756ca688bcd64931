package workmetrics

import (
	"slices"
	"time"
)

// VersionLatency measures, for one work, the time from when a version of it was accepted to when
// the first status about it came. The zero VersionLatency has measured nothing.
type VersionLatency struct {
	version int64
	since   int64 // Unix nanoseconds, or one of the two below
}

const (
	answered = -1
	sent     = -2
)

// Sent takes it that a version goes out. One that was told about before is not measured:
// whatever is said of it next may come at any time.
func (t *VersionLatency) Sent(version, reported int64) {
	if version > t.version && version > reported {
		t.version, t.since = version, sent
	}
}

// Accepted takes the answer to what was sent. known: it was there already, nobody knows since when.
func (t *VersionLatency) Accepted(version int64, known bool, now time.Time) {
	switch {
	case version != t.version || t.since != sent:
	case known:
		t.since = answered
	default:
		t.since = max(now.UnixNano(), 0)
	}
}

// Reported takes a status about a version, or a later one. It returns how long that took, once for
// each version; a status may come before the answer that says that the version was accepted.
func (t *VersionLatency) Reported(version int64, now time.Time) (took time.Duration, ok bool) {
	if version != t.version || t.since == answered || t.version == 0 {
		return 0, false
	}
	if t.since != sent {
		took = max(0, time.Duration(now.UnixNano()-t.since))
	}
	t.since = answered
	return took, true
}

// Commits knows when revisions were committed: exactly those of the last moments, and the
// older one is the coarser, by a fiftieth of its age at most. It needs a few pages of memory,
// however many commits there are.
type Commits struct {
	// before is the last revision of which nothing is known, because it is older than this.
	before uint64
	all    []commit // in order, both ways
}

// commit says that everything up to a revision, and behind the commit before, was committed then.
type commit struct {
	revision uint64
	at       time.Time
}

// maxCommits bounds what is kept; thin leaves less than half of it.
const maxCommits = 4096

// Times below finest are not told from each other, and those above longest neither.
const (
	finest  = 500 * time.Microsecond
	longest = 2 * time.Hour
)

// NewCommits begins behind a revision.
func NewCommits(before uint64) *Commits { return &Commits{before: before} }

// Committed takes it that everything up to a revision is committed now.
func (c *Commits) Committed(revision uint64, now time.Time) {
	last := c.before
	if n := len(c.all); n > 0 {
		last = c.all[n-1].revision
	}
	if revision <= last {
		return
	}
	if len(c.all) == maxCommits {
		c.thin(now)
	}
	c.all = append(c.all, commit{revision, now})
}

// thin lets go of commits that are so close to a later one that it stands for them.
func (c *Commits) thin(now time.Time) {
	kept := c.all[:0:0]
	for i := len(c.all) - 1; i >= 0; i-- {
		e := c.all[i]
		if n := len(kept); n > 0 {
			next := kept[n-1].at
			if age := now.Sub(next); age > longest || next.Sub(e.at) < max(finest, age/100) {
				continue
			}
		}
		kept = append(kept, e)
	}
	slices.Reverse(kept)
	c.all = kept
}

// Since returns how long ago a revision was committed; false for one of which nothing is known.
// One that is still to be told of is committed at this moment.
func (c *Commits) Since(revision uint64, now time.Time) (time.Duration, bool) {
	i, _ := slices.BinarySearchFunc(c.all, revision, func(e commit, r uint64) int {
		switch {
		case e.revision < r:
			return -1
		case e.revision > r:
			return 1
		}
		return 0
	})
	switch {
	case revision <= c.before:
		return 0, false
	case i == len(c.all):
		return 0, true
	}
	return max(0, now.Sub(c.all[i].at)), true
}
