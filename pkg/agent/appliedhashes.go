package agent

import (
	"maps"
	"strings"

	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// appliedHashes says how the objects of works were left when they were as wanted, so that
// a process that follows need not write what the server has completed since. It
// is true of an object whatever happens to it: it says how it was when it was
// right.
type appliedHashes struct {
	// objects are texts of apply.Known by key and name of the object. A map of a key
	// is never changed, but replaced.
	objects map[string]map[string]string
	// changed: what is on the journal is another.
	changed bool
}

// objectName names an object within a key.
func objectName(r kubeclient.Ref) string {
	return strings.Join([]string{r.Group, r.Version, r.Resource, r.Namespace, r.Name}, "/")
}

// noteWritten notes how the objects of a key are now.
func (k *persister) noteWritten(key string, known map[kubeclient.Ref]remembered) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.config.Journal != nil {
		k.written.put(key, known)
	}
}

// writtenBefore returns how an earlier process left an object; the zero Known if
// nobody knows.
func (k *persister) writtenBefore(key string, ref kubeclient.Ref) apply.Known {
	k.mu.Lock()
	defer k.mu.Unlock()
	known, _ := apply.ParseKnown(k.written.objects[key][objectName(ref)])
	return known
}

// take returns what is about to be saved; nil if that is as it was saved last.
func (w *appliedHashes) take() map[string]map[string]string {
	if !w.changed {
		return nil
	}
	w.changed = false
	return maps.Clone(w.objects)
}

// restore accepts what an earlier process saved, of keys that still are wanted. It is
// written anew with the log.
func (w *appliedHashes) restore(saved map[string]map[string]string, wanted func(key string) bool) {
	w.objects = saved
	maps.DeleteFunc(w.objects, func(key string, _ map[string]string) bool { return !wanted(key) })
}

// put notes how the objects of a key are now; none forgets the key.
func (w *appliedHashes) put(key string, known map[kubeclient.Ref]remembered) {
	objects := make(map[string]string, len(known))
	for ref, k := range known {
		if k.UID != "" && (!k.rejected || k.Incomplete()) {
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
