package agent

import "time"

// driftPause collects simultaneous changes, so that one reconciliation repairs them.
const driftPause = 50 * time.Millisecond

// rate is the rate of a token bucket: burst tokens, and one more for each period of every.
type rate struct {
	burst int
	every time.Duration
}

var (
	// repairRate bounds the drift repairs of a key. A competing writer then cannot keep the agent and the cluster
	// busy.
	repairRate = rate{burst: 20, every: time.Minute}
	// lookRate bounds the reads of a key for its status, for objects that change all the time. lookPause is the
	// time between two of them.
	lookRate = rate{burst: 30, every: time.Second}
)

const lookPause = 300 * time.Millisecond

// tokenBucket is a token bucket. The zero value is full. A new rate applies from its next use on.
type tokenBucket struct {
	spent int       // tokens missing at since
	since time.Time // when spent was computed
}

// missing returns the number of missing tokens at now.
func (b *tokenBucket) missing(r rate, now time.Time) int {
	return max(0, b.spent-int(now.Sub(b.since)/r.every))
}

// spend takes a token and reports whether it was the last.
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

// wait returns the wait for a token.
func (b *tokenBucket) wait(r rate, now time.Time) time.Duration {
	if b.missing(r, now) < r.burst {
		return 0
	}
	return b.since.Add(time.Duration(b.spent-r.burst+1) * r.every).Sub(now)
}

// looks bounds how often a key reads objects for their status.
type looks struct {
	last time.Time
	tokenBucket
}

func (l *looks) note(now time.Time) {
	l.last = now
	l.spend(lookRate, now)
}

// wait returns the wait before the next read.
func (l *looks) wait(now time.Time) time.Duration {
	return max(0, l.last.Add(lookPause).Sub(now), l.tokenBucket.wait(lookRate, now))
}
