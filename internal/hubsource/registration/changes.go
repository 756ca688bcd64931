package registration

import "k8s.io/apimachinery/pkg/types"

// key identifies one object for the broker. If the label with the cluster changes, the broker sees another
// object.
type key struct {
	kind            int // index in kinds
	cluster         string
	namespace, name string
}

// changes are the objects that are still to be published, each once, in the order of their first change. Their
// number is bounded by the number of objects.
type changes struct {
	order []key
	// waiting has the keys in order. The value is the uid of a deleted object, otherwise "".
	waiting map[key]types.UID
	// unlisted is the number of keys at the start of order that the broker does not know yet since restart.
	// listed: take has returned true.
	unlisted int
	listed   bool
}

// restart starts again with all objects, for a broker that knows none.
func (c *changes) restart(all []key) {
	*c = changes{order: all, waiting: make(map[key]types.UID, len(all)), unlisted: len(all)}
	for _, k := range all {
		c.waiting[k] = ""
	}
}

// add records a change of an object; gone is its uid if it was deleted, otherwise "".
func (c *changes) add(k key, gone types.UID) {
	if c.waiting == nil {
		return // there is no broker: restart will have all objects
	}
	if _, waits := c.waiting[k]; !waits {
		c.order = append(c.order, k)
	}
	c.waiting[k] = gone
}

// stop drops all changes: the broker is disconnected.
func (c *changes) stop() { *c = changes{} }

// any reports whether there is something to publish.
func (c *changes) any() bool { return c.waiting != nil && (len(c.order) > 0 || !c.listed) }

// take removes the next changes while fits, which is called for each, returns true. lists: with these changes
// the broker knows all objects from the start of the subscription.
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
