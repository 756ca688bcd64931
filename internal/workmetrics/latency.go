package workmetrics

import (
	"slices"
	"time"
)

// VersionLatency measures, for one work, the time from the acceptance of a version to the first status about
// it. The zero value has measured nothing.
type VersionLatency struct {
	version int64
	since   int64 // Unix nanoseconds, or answered, or sent
}

const (
	answered = -1
	sent     = -2
)

// Sent records that a version is published. A version that was reported before is not measured: the time of its
// next status has no meaning.
func (t *VersionLatency) Sent(version, reported int64) {
	if version > t.version && version > reported {
		t.version, t.since = version, sent
	}
}

// Accepted handles the answer to a publish. known: the broker had the version already, for an unknown time.
func (t *VersionLatency) Accepted(version int64, known bool, now time.Time) {
	switch {
	case version != t.version || t.since != sent:
	case known:
		t.since = answered
	default:
		t.since = max(now.UnixNano(), 0)
	}
}

// Reported handles a status about a version. It returns its latency, once per version. A status may come before
// the answer that accepts the version; the latency is then 0.
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

// Commits knows when revisions were committed. Recent times are exact; the error of older ones is a fiftieth of
// their age at most. It needs a few pages of memory for any number of commits.
type Commits struct {
	// before is the last revision without a known time, because it is older than this.
	before uint64
	all    []commit // sorted by revision and by time
}

// commit is the time of the revisions after the previous commit, up to revision.
type commit struct {
	revision uint64
	at       time.Time
}

// maxCommits is the maximum number of commits. thin keeps less than half of it.
const maxCommits = 4096

// thin merges times that differ by less than finest, and all times older than longest.
const (
	finest  = 500 * time.Microsecond
	longest = 2 * time.Hour
)

// NewCommits returns Commits that begin after a revision.
func NewCommits(before uint64) *Commits { return &Commits{before: before} }

// Committed records the commit time of all revisions up to revision.
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

// thin drops commits that are close enough to a later one.
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

// Since returns how long ago a revision was committed. It returns false for a revision without a known time. A
// revision that is not recorded yet counts as committed now.
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
