package agent

import (
	"maps"
	"strings"

	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/cluster"
)

// written says how the objects of works were left when they were as wanted, so that
// a process that follows need not write what the server has completed since. It
// is true of an object whatever happens to it: it says how it was when it was
// right. Guarded by Core.mu.
type written struct {
	// objects are texts of apply.Known by key and name of the object. A map of a key
	// is never changed, but replaced.
	objects map[string]map[string]string
	// changed: what is on the journal is another.
	changed bool
}

// objectName names an object within a key.
func objectName(r cluster.Ref) string {
	return strings.Join([]string{r.Group, r.Version, r.Resource, r.Namespace, r.Name}, "/")
}

// noteWritten notes how the objects of the key are now.
func (r *reconciliation) noteWritten(known map[cluster.Ref]remembered) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.config.Journal != nil {
		r.written.put(r.key, known)
	}
}

// writtenBefore returns how an earlier process left an object; the zero Known if
// nobody knows.
func (r *reconciliation) writtenBefore(ref cluster.Ref) apply.Known {
	r.mu.Lock()
	defer r.mu.Unlock()
	k, _ := apply.ParseKnown(r.written.objects[r.key][objectName(ref)])
	return k
}

// restore accepts what an earlier process saved, of keys that still are wanted.
func (w *written) restore(saved map[string]map[string]string, wanted func(key string) bool) {
	w.objects = map[string]map[string]string{}
	for key, objects := range saved {
		if w.changed = w.changed || !wanted(key); wanted(key) {
			w.objects[key] = objects
		}
	}
}

// put notes how the objects of a key are now; none forgets the key.
func (w *written) put(key string, known map[cluster.Ref]remembered) {
	objects := make(map[string]string, len(known))
	for ref, k := range known {
		if k.UID != "" && !k.rejected {
			objects[objectName(ref)] = k.Text()
		}
	}
	if maps.Equal(objects, w.objects[key]) {
		return
	}
	if w.changed = true; w.objects == nil {
		w.objects = map[string]map[string]string{}
	}
	if w.objects[key] = objects; len(objects) == 0 {
		delete(w.objects, key)
	}
}
