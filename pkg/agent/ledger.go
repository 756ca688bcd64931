package agent

import (
	"maps"
	"strings"

	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/cluster"
)

// ledger says how the objects of works were left when they were as wanted, so that
// a process that follows need not write what the server has completed since. It
// is true of an object whatever happens to it: it says how it was when it was
// right. Guarded by Core.mu.
type ledger struct {
	// objects are texts of apply.Known by key and name of the object.
	objects map[string]map[string]string
	// changed: what is on the journal is another.
	changed bool
}

// leftName names an object within a key.
func leftName(r cluster.Ref) string {
	return strings.Join([]string{r.Group, r.Version, r.Resource, r.Namespace, r.Name}, "/")
}

// leftSeparator is between key and object on the journal; it is in no name.
const leftSeparator = "\x00"

// noteLeft notes how the objects of the key are now.
func (r *round) noteLeft(known map[cluster.Ref]remembered) {
	if r.config.Journal == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ledger.put(r.key, known)
}

// leftBefore returns how an earlier process left an object; the zero Known if
// nobody knows.
func (r *round) leftBefore(ref cluster.Ref) apply.Known {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ledger.of(r.key, ref)
}

// restore takes what an earlier process saved, of keys that still are wanted.
func (l *ledger) restore(saved map[string]string, wanted func(key string) bool) {
	l.objects = map[string]map[string]string{}
	for name, text := range saved {
		key, object, ok := strings.Cut(name, leftSeparator)
		if !ok || !wanted(key) {
			l.changed = true
			continue
		}
		if l.objects[key] == nil {
			l.objects[key] = map[string]string{}
		}
		l.objects[key][object] = text
	}
}

// put notes how the objects of a key are now; none forgets the key.
func (l *ledger) put(key string, known map[cluster.Ref]remembered) {
	objects := make(map[string]string, len(known))
	for ref, k := range known {
		if k.UID != "" && !k.rejected {
			objects[leftName(ref)] = k.Text()
		}
	}
	if maps.Equal(objects, l.objects[key]) {
		return
	}
	l.changed = true
	if len(objects) == 0 {
		delete(l.objects, key)
		return
	}
	if l.objects == nil {
		l.objects = map[string]map[string]string{}
	}
	l.objects[key] = objects
}

// of returns how an object was left; the zero Known if nobody knows.
func (l *ledger) of(key string, ref cluster.Ref) apply.Known {
	k, _ := apply.ParseKnown(l.objects[key][leftName(ref)])
	return k
}

// take returns everything, for the journal, if it is not on it.
func (l *ledger) take() (all map[string]string, changed bool) {
	if !l.changed {
		return nil, false
	}
	l.changed = false
	all = map[string]string{}
	for key, objects := range l.objects {
		for name, text := range objects {
			all[key+leftSeparator+name] = text
		}
	}
	return all, true
}
