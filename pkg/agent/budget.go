package agent

import "time"

// driftPause lets changes of one moment be repaired in one go.
const driftPause = 50 * time.Millisecond

// rate is how often something may be done: burst times in a row, and once more
// for every so much time.
type rate struct {
	burst int
	every time.Duration
}

var (
	// repairRate is how often a key may repair drift, so that somebody else who
	// wants the objects otherwise does not keep agent and cluster busy.
	repairRate = rate{burst: 20, every: time.Minute}
	// lookRate is how often a key may read objects because of their status, so
	// that one that changes all the time does not; lookPause is between two.
	lookRate = rate{burst: 30, every: time.Second}
)

const lookPause = 300 * time.Millisecond

// tokenBucket is a token bucket; the zero value is full. Another rate counts from its
// next use on.
type tokenBucket struct {
	spent int       // tokens missing at since
	since time.Time // when spent was right
}

// missing returns the tokens missing now.
func (b *tokenBucket) missing(r rate, now time.Time) int {
	return max(0, b.spent-int(now.Sub(b.since)/r.every))
}

// spend takes a token and reports whether that was the last.
func (b *tokenBucket) spend(r rate, now time.Time) (last bool) {
	missing := b.missing(r, now)
	if missing == 0 {
		b.since = now
	} else {
		b.since = b.since.Add(time.Duration(b.spent-missing) * r.every)
	}
	b.spent = min(missing+1, r.burst)
	return missing == r.burst-1
}

// wait returns how long to wait for a token.
func (b *tokenBucket) wait(r rate, now time.Time) time.Duration {
	if b.missing(r, now) < r.burst {
		return 0
	}
	return b.since.Add(time.Duration(b.spent-r.burst+1) * r.every).Sub(now)
}

// looks bound how often a key reads objects for their status.
type looks struct {
	last time.Time
	tokenBucket
}

func (l *looks) note(now time.Time) {
	l.last = now
	l.spend(lookRate, now)
}

// wait returns how long to wait before the next look.
func (l *looks) wait(now time.Time) time.Duration {
	return max(0, l.last.Add(lookPause).Sub(now), l.tokenBucket.wait(lookRate, now))
}
