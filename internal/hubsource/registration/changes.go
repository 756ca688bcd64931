package registration

import (
	"k8s.io/apimachinery/pkg/types"
)

// key is one object towards the broker. An object of which the label that names its cluster
// changes is another one for the broker.
type key struct {
	kind            int // index in kinds
	cluster         string
	namespace, name string
}

// changes are the objects still to be said to the broker, each once, in the order in which they
// changed first. Their number is bounded by that of the objects.
type changes struct {
	order []key
	// waiting has what is in order: the uid of an object that is gone, else "".
	waiting map[key]types.UID
	// unlisted is how many of order have to be said until the broker knows everything; listed:
	// that was told.
	unlisted int
	listed   bool
}

// restart begins anew, for a broker that knows nothing: with all objects.
func (c *changes) restart(all []key) {
	*c = changes{order: all, waiting: make(map[key]types.UID, len(all)), unlisted: len(all)}
	for _, k := range all {
		c.waiting[k] = ""
	}
}

// add says that an object changed; gone is its uid where it went.
func (c *changes) add(k key, gone types.UID) {
	if c.waiting == nil {
		return // there is nobody to tell: restart will have all
	}
	if _, waits := c.waiting[k]; !waits {
		c.order = append(c.order, k)
	}
	c.waiting[k] = gone
}

// stop forgets what waits: the broker is gone.
func (c *changes) stop() { *c = changes{} }

// any reports whether there is something to say.
func (c *changes) any() bool { return c.waiting != nil && (len(c.order) > 0 || !c.listed) }

// take takes out what comes next as long as fits says so, which is called for each. lists: with it
// the broker knows everything that there was at the beginning.
func (c *changes) take(fits func(k key, gone types.UID) bool) (lists bool) {
	n := 0
	for n < len(c.order) && fits(c.order[n], c.waiting[c.order[n]]) {
		delete(c.waiting, c.order[n])
		n++
	}
	c.order = c.order[n:]
	c.unlisted = max(0, c.unlisted-n)
	lists = c.unlisted == 0 && !c.listed
	c.listed = c.listed || lists
	return lists
}
