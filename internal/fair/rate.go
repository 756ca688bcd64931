package fair

import "time"

// Rate is how much of something there may be: Burst at once, then PerSecond.
type Rate struct{ PerSecond, Burst float64 }

// Bucket counts against a [Rate]. The zero value is full.
type Bucket struct {
	used float64
	at   time.Time
}

// Spend takes n if so much is there.
func (b *Bucket) Spend(r Rate, now time.Time, n float64) bool {
	b.leak(r, now)
	if b.used+n > r.Burst {
		return false
	}
	b.used += n
	return true
}

// Allows reports whether one could be spent.
func (b *Bucket) Allows(r Rate, now time.Time) bool {
	b.leak(r, now)
	return b.used+1 <= r.Burst
}

// Charge takes n whether or not it is there, so that whoever caused a cost that
// nobody could foresee waits for it. Nobody owes more than another burst.
func (b *Bucket) Charge(r Rate, now time.Time, n float64) {
	b.leak(r, now)
	b.used = min(b.used+n, 2*r.Burst)
}

// Reserve takes n for later, and returns when that is: after as long as it takes until all
// that was taken before, and n, are there. Who reserves bounds how often it does.
func (b *Bucket) Reserve(r Rate, now time.Time, n float64) time.Duration {
	b.leak(r, now)
	b.used += n
	return b.Debt(r)
}

// Debt returns how long it takes until no more is taken than may be at once: what [Bucket.Charge]
// took beyond it.
func (b *Bucket) Debt(r Rate) time.Duration {
	return time.Duration(max(0, b.used-r.Burst) / r.PerSecond * float64(time.Second))
}

// Full reports whether nothing is spent any more, so that the bucket need not be
// kept.
func (b *Bucket) Full(r Rate, now time.Time) bool {
	b.leak(r, now)
	return b.used == 0
}

func (b *Bucket) leak(r Rate, now time.Time) {
	if gone := now.Sub(b.at).Seconds(); gone > 0 {
		b.used, b.at = max(0, b.used-gone*r.PerSecond), now
	}
}
