package fair

import "time"

// Rate is the rate of a token bucket: Burst at once, then PerSecond.
type Rate struct{ PerSecond, Burst float64 }

// Bucket is a token bucket for a [Rate]. The zero value is full.
type Bucket struct {
	used float64
	at   time.Time
}

// Spend takes n tokens. It returns false, and takes none, if there are fewer.
func (b *Bucket) Spend(r Rate, now time.Time, n float64) bool {
	b.leak(r, now)
	if b.used+n > r.Burst {
		return false
	}
	b.used += n
	return true
}

// Allows reports whether one token is left.
func (b *Bucket) Allows(r Rate, now time.Time) bool {
	b.leak(r, now)
	return b.used+1 <= r.Burst
}

// Charge takes n tokens even if there are fewer, for a cost that is known only afterwards. The debt is one
// burst at most.
func (b *Bucket) Charge(r Rate, now time.Time, n float64) {
	b.leak(r, now)
	b.used = min(b.used+n, 2*r.Burst)
}

// Reserve takes n tokens in advance, and returns how long the caller has to wait for them. The caller bounds
// the number of its reservations.
func (b *Bucket) Reserve(r Rate, now time.Time, n float64) time.Duration {
	b.leak(r, now)
	b.used += n
	return b.Debt(r)
}

// Debt returns the time until the debt of [Bucket.Charge] is paid.
func (b *Bucket) Debt(r Rate) time.Duration {
	return time.Duration(max(0, b.used-r.Burst) / r.PerSecond * float64(time.Second))
}

// Full reports whether all tokens are there, so that the bucket can be dropped.
func (b *Bucket) Full(r Rate, now time.Time) bool {
	b.leak(r, now)
	return b.used == 0
}

func (b *Bucket) leak(r Rate, now time.Time) {
	if gone := now.Sub(b.at).Seconds(); gone > 0 {
		b.used, b.at = max(0, b.used-gone*r.PerSecond), now
	}
}
