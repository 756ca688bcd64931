package agent

import "time"

const (
	// driftPause lets changes of one moment be repaired in one go.
	driftPause = 50 * time.Millisecond
	// A key may repair drift repairBurst times in a row; it earns another repair
	// every repairEvery. So somebody else who wants the objects otherwise does
	// not keep agent and cluster busy.
	repairBurst = 20
	repairEvery = time.Minute
)

// budget is a token bucket for repairs; the zero value is full.
type budget struct {
	spent int       // tokens missing at since
	since time.Time // when spent was right
}

// missing returns the tokens missing now.
func (b *budget) missing(now time.Time) int {
	return max(0, b.spent-int(now.Sub(b.since)/repairEvery))
}

// spend takes a token and reports whether that was the last.
func (b *budget) spend(now time.Time) (last bool) {
	missing := b.missing(now)
	if missing == 0 {
		b.since = now
	} else {
		b.since = b.since.Add(time.Duration(b.spent-missing) * repairEvery)
	}
	b.spent = min(missing+1, repairBurst)
	return missing == repairBurst-1
}

// wait returns how long to wait for a token.
func (b *budget) wait(now time.Time) time.Duration {
	if b.missing(now) < repairBurst {
		return 0
	}
	return b.since.Add(time.Duration(b.spent-repairBurst+1) * repairEvery).Sub(now)
}
