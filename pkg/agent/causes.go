package agent

import (
	"errors"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A webhook that does not answer fails the writes of every work. So one key of those that fail for
// a cause tries again, after waits that begin at firstProbe and double up to lastProbe; the others
// wait for it. When a key succeeds, two more are let go, and two more by the success of each of
// them: all of them go at once when the cause has ended, and few when it lasts for most of them.
const (
	firstProbe = 50 * time.Millisecond
	lastProbe  = 10 * time.Second
	// A cause is logged from a wait of slowProbe on.
	slowProbe = time.Second
	// Beyond probesAtOnce causes each is tried less often: one probe a second in sum.
	probesAtOnce = 10
	// mostCauses bounds the causes of one key.
	mostCauses = 4
	letGo      = 2
)

// causes are the keys that fail, by why. It is a pure step function: it has no clock and no lock.
type causes struct {
	groups map[string]*causeGroup
	of     map[string][]string // the causes of a key
	// slow and over are causes to be logged: they last, or do not any more.
	slow, over []string
}

// causeGroup are the keys that fail for one cause.
type causeGroup struct {
	// tries says how often each key has tried in this group, waiting are those that neither
	// probe nor were let go, in order of their arrival.
	tries   map[string]int
	waiting []string
	// probe is the key that tries next, "" if there is none; wait is how long it waits.
	probe string
	wait  time.Duration
	// lasts: it was logged.
	lasts bool
}

// due says when keys are to be tried.
type due map[string]time.Duration

func newCauses() *causes {
	return &causes{groups: map[string]*causeGroup{}, of: map[string][]string{}}
}

// failed notes that a key failed, for these causes and no others. It returns which keys are due,
// and when; the key itself may be among them.
func (c *causes) failed(key string, why []string) due {
	d := due{}
	for _, cause := range c.of[key] {
		if !slices.Contains(why, cause) {
			c.leave(key, cause, true, d)
		}
	}
	c.of[key] = why
	for _, cause := range why {
		g := c.groups[cause]
		if g == nil {
			g = &causeGroup{tries: map[string]int{}}
			c.groups[cause] = g
		}
		g.tries[key]++
		if !slices.Contains(g.waiting, key) {
			g.waiting = append(g.waiting, key)
		}
		if g.probe == key || g.probe == "" {
			c.choose(cause, d)
		}
	}
	return d
}

// ended notes that a key does not fail for these causes any more. succeeded says that it tried;
// else it has no more to do with them.
func (c *causes) ended(key string, succeeded bool) due {
	d := due{}
	for _, cause := range c.of[key] {
		c.leave(key, cause, succeeded, d)
	}
	delete(c.of, key)
	return d
}

func (c *causes) leave(key, cause string, succeeded bool, d due) {
	g := c.groups[cause]
	delete(g.tries, key)
	if i := slices.Index(g.waiting, key); i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
	}
	if g.probe == key {
		g.probe = ""
	}
	if len(g.tries) == 0 {
		if delete(c.groups, cause); g.lasts {
			c.over = append(c.over, cause)
		}
		return
	}
	if succeeded {
		g.wait = 0
		n := min(letGo, len(g.waiting))
		for _, next := range g.waiting[:n] {
			if g.probe == next {
				g.probe = ""
			}
			d[next] = 0
		}
		g.waiting = slices.Delete(g.waiting, 0, n)
	}
	if g.probe == "" && len(g.waiting) == len(g.tries) { // none was let go
		c.choose(cause, d)
	}
}

// choose has one of those that wait try next: one that has tried the least, of several the first.
func (c *causes) choose(cause string, d due) {
	g := c.groups[cause]
	g.probe = slices.MinFunc(g.waiting, func(a, b string) int { return g.tries[a] - g.tries[b] })
	last := lastProbe * time.Duration(max(probesAtOnce, len(c.groups))) / probesAtOnce
	g.wait = min(last, max(firstProbe, 2*g.wait))
	if !g.lasts && g.wait >= slowProbe {
		g.lasts = true
		c.slow = append(c.slow, cause)
	}
	d.add(g.probe, g.wait)
}

func (d due) add(key string, after time.Duration) {
	if old, has := d[key]; !has || after < old {
		d[key] = after
	}
}

// share has keys that fail for one cause tried by one of them: err is returned if it is the key's
// own. next is when the key is due.
func (c *Core) share(r *reconciliation, next time.Duration, err error) (time.Duration, error) {
	why, shared := causesOf(err)
	c.mu.Lock()
	var d due
	if shared {
		d = c.causes.failed(r.key, why)
	} else {
		d = c.causes.ended(r.key, err == nil && !r.view.Empty())
	}
	slow, over := c.causes.slow, c.causes.over
	c.causes.slow, c.causes.over = nil, nil
	c.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(d)) {
		if key != r.key {
			c.config.Later(key, d[key])
		}
	}
	for _, cause := range slow {
		r.log.Warn("works fail for one cause: one of them tries again, the others wait for it", "cause", cause, "every", lastProbe, "error", err)
	}
	for _, cause := range over {
		r.log.Info("no work fails for this cause any more", "cause", cause)
	}
	if !shared {
		return sooner(next, d[r.key]), err
	}
	r.log.Debug("work is not as wanted, for a cause that it may share with others", "error", err)
	return sooner(next, sooner(d[r.key], lookAgain+time.Duration(c.config.Random()*float64(lookAgain/2)))), nil
}

// variable matches the parts of answers that differ between works, longestCause bounds the rest.
var variable = regexp.MustCompile(`"[^"]*"|\d+`)

const longestCause = 160

// webhook matches the answer of a server when a webhook of admission fails.
var webhook = regexp.MustCompile(`failed calling webhook "([^"]*)"`)

// causesOf returns why a reconciliation failed, in words that are the same for all that fail for
// the same reason; ok is false if the errors have another reason, too. Such reasons lie with the
// cluster and not with a work.
func causesOf(err error) (why []string, ok bool) {
	for _, one := range leaves(err) {
		cause, shared := causeOf(one)
		if !shared {
			return nil, false
		}
		if !slices.Contains(why, cause) && len(why) < mostCauses {
			why = append(why, cause)
		}
	}
	slices.Sort(why)
	return why, len(why) > 0
}

func causeOf(err error) (cause string, shared bool) {
	var status apierrors.APIStatus
	switch {
	case errors.As(err, &status):
		s := status.Status()
		if s.Code < http.StatusInternalServerError && s.Code != http.StatusTooManyRequests {
			return "", false
		}
		if name := webhook.FindStringSubmatch(s.Message); name != nil {
			return "webhook " + name[1], true
		}
		cause = strconv.Itoa(int(s.Code)) + " " + string(s.Reason)
		text := variable.ReplaceAllString(s.Message, "")
		return cause + " " + text[:min(len(text), longestCause)], true
	case errors.As(err, new(net.Error)):
		return "the cluster does not answer", true
	}
	return "", false
}

// leaves returns the errors that were joined.
func leaves(err error) []error {
	if err == nil {
		return nil
	}
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		var all []error
		for _, one := range joined.Unwrap() {
			all = append(all, leaves(one)...)
		}
		return all
	}
	return []error{err}
}
