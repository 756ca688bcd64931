package agent

import (
	"maps"
	"strings"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// appliedHashes records the state in which the agent left the objects of works when they were as wanted. The
// next process then need not write fields that the server has defaulted since. An entry stays valid when the
// object changes: it describes the correct state.
type appliedHashes struct {
	// objects has the texts of apply.KnownState, each behind its proof, by key and object name. The map of a key is
	// replaced and never modified.
	objects map[string]map[string]string
	// changed: the journal has an older state.
	changed bool
}

// objectName returns the name of an object within a key.
func objectName(r kubeclient.Ref) string {
	return strings.Join([]string{r.Group, r.Version, r.Resource, r.Namespace, r.Name}, "/")
}

// noteWritten records the current state of the objects of a key.
func (k *persister) noteWritten(key string, known map[kubeclient.Ref]remembered) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.config.Journal != nil {
		k.written.put(key, known)
	}
}

// take returns the state to save; nil if it is unchanged since the last save.
func (w *appliedHashes) take() map[string]map[string]string {
	if !w.changed {
		return nil
	}
	w.changed = false
	return maps.Clone(w.objects)
}

// restore adopts the entries of an earlier process for the keys that are still wanted. They are written again
// with the log.
func (w *appliedHashes) restore(saved map[string]map[string]string, wanted func(key string) bool) {
	w.objects = saved
	maps.DeleteFunc(w.objects, func(key string, _ map[string]string) bool { return !wanted(key) })
}

// put records the current state of the objects of a key. An empty map removes the key.
func (w *appliedHashes) put(key string, known map[kubeclient.Ref]remembered) {
	objects := make(map[string]string, len(known))
	for ref, k := range known {
		if k.UID != "" && (!k.rejected || k.Incomplete()) {
			objects[objectName(ref)] = k.proof.text() + k.Text()
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
