package audit

import "time"

const (
	// period is the time in which rejections of one kind are counted in one line.
	period = 10 * time.Second
	// kinds is the maximum number of kinds in a period. Further rejections are counted by reason only.
	kinds = 64
)

// refusal is one kind of rejection.
type refusal struct{ client, from, method, reason string }

// counted is a kind of rejection with the number of repetitions after its first line.
type counted struct {
	refusal
	n int
}

// repeated counts rejections. The zero value is empty.
type repeated struct {
	since time.Time
	of    map[refusal]int // repetitions after the first
	rest  map[string]int  // by reason: above the maximum of kinds
}

// count counts a rejection, and reports whether to write it.
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

// over returns the counts and begins a new period, if the period has ended or all is true.
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
