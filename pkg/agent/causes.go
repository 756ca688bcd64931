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

// A failing webhook fails the writes of every work. Therefore only one of the keys that fail for a cause
// retries, after waits that double from firstProbe to lastProbe. The other keys wait. When a key succeeds, two
// more are released, and two more by each of these. So all keys proceed quickly when the cause has ended, and
// only a few if most still fail.
const (
	firstProbe = 50 * time.Millisecond
	lastProbe  = 10 * time.Second
	// slowProbe is the wait from which on a cause is logged.
	slowProbe = time.Second
	// probesAtOnce bounds the probes of all causes to one per second. With more causes each is probed less often.
	probesAtOnce = 10
	// mostCauses bounds the causes of one key.
	mostCauses = 4
	letGo      = 2
)

// causes groups failing keys by cause. It is a pure step function without a clock or a lock.
type causes struct {
	groups map[string]*causeGroup
	of     map[string][]string // the causes of a key
	// slow and over have the causes to log: those that last, and those that have ended.
	slow, over []string
}

// causeGroup has the keys that fail for one cause.
type causeGroup struct {
	// tries counts the attempts of each key in this group. waiting has the keys that are neither released nor
	// retrying, in order of arrival.
	tries   map[string]int
	waiting []string
	// probe is the key that retries next, "" if there is none. wait is the time until then.
	probe string
	wait  time.Duration
	// lasts: the cause was logged.
	lasts bool
}

// due has the retry time of keys.
type due map[string]time.Duration

func newCauses() *causes {
	return &causes{groups: map[string]*causeGroup{}, of: map[string][]string{}}
}

// failed records that a key failed for exactly these causes. It returns the keys that are due and their waits;
// the key itself may be one of them.
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

// ended records that a key no longer fails for its causes. succeeded: the key tried and succeeded; false: the
// causes no longer concern it.
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
	if g.probe == "" && len(g.waiting) == len(g.tries) { // no key was released
		c.choose(cause, d)
	}
}

// choose selects the next probe: the waiting key with the fewest tries, the first of several.
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

// share lets one of the keys that fail for one cause retry for all. err is returned if it is the key's own.
// next is when the key is due.
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
		r.log.Warn("works fail for one cause: one of them retries, the others wait for it", "cause", cause, "every", lastProbe, "error", err)
	}
	for _, cause := range over {
		r.log.Info("no work fails for this cause any more", "cause", cause)
	}
	if !shared {
		return sooner(next, d[r.key]), err
	}
	r.log.Debug("work is not applied as specified; other works may have the same cause", "error", err)
	return sooner(next, sooner(d[r.key], lookAgain+time.Duration(c.config.Random()*float64(lookAgain/2)))), nil
}

// variable matches the parts of error texts that differ between works. longestCause bounds the rest.
var variable = regexp.MustCompile(`"[^"]*"|\d+`)

const longestCause = 160

// webhook matches the error of a server whose admission webhook fails.
var webhook = regexp.MustCompile(`failed calling webhook "([^"]*)"`)

// causesOf returns the causes of a failed reconciliation as texts that are equal for equal reasons. Such causes
// are on the cluster and not in the work. ok is false if the errors also have another reason.
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

// leaves returns the joined errors.
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
