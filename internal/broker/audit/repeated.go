package audit

import "time"

const (
	// period is for how long refusals of one kind are counted into one line.
	period = 10 * time.Second
	// kinds bounds how many kinds are told apart in a period; of the others the
	// number counts, by reason.
	kinds = 64
)

// refusal is what is told apart.
type refusal struct{ client, from, method, reason string }

// counted is how often one was repeated after its first line.
type counted struct {
	refusal
	n int
}

// repeated counts refusals. The zero value has counted none.
type repeated struct {
	since time.Time
	of    map[refusal]int // after the first
	rest  map[string]int  // by reason: what there was no room for
}

// count counts a refusal, and reports whether it is to be written.
func (r *repeated) count(k refusal, now time.Time) bool {
	if r.of == nil {
		r.since, r.of, r.rest = now, map[refusal]int{}, map[string]int{}
	}
	n, known := r.of[k]
	switch {
	case known:
		r.of[k] = n + 1
	case len(r.of) < kinds:
		r.of[k] = 0
		return true
	default:
		r.rest[k.reason]++
	}
	return false
}

// over returns what was counted, once the period has ended, or in any case, and
// begins anew.
func (r *repeated) over(now time.Time, all bool) (done []counted) {
	if r.of == nil || !all && now.Sub(r.since) < period {
		return nil
	}
	for k, n := range r.of {
		if n > 0 {
			done = append(done, counted{k, n})
		}
	}
	for reason, n := range r.rest {
		done = append(done, counted{refusal{reason: reason}, n})
	}
	*r = repeated{}
	return done
}
