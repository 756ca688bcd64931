package sim

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
)

var worksResource = schema.GroupResource{Group: "work.open-cluster-management.io", Resource: "manifestworks"}

// hub is a kube-apiserver that holds ManifestWorks: resource versions with
// conflicts, generations, uids, finalizers, and a watch that lags.
type hub struct {
	w     *world
	works map[string]*workv1.ManifestWork // by namespace/name; never modified
	log   []hubEvent                      // all that ever happened; watches read it at their own pace
	// life counts the restores from a backup: no watch outlives one. log is that
	// of this life.
	life  int
	state map[string]string // the ConfigMap of the hub source
	rv    int
	uids  int
	down  bool
	old   *hubBackup
}

const hubUID = "uid-of-the-hub"

func keyOf(o *workv1.ManifestWork) string { return o.Namespace + "/" + o.Name }

type hubEvent struct {
	o    *workv1.ManifestWork
	gone bool
}

func (h *hub) keys() []string { return slices.Sorted(maps.Keys(h.works)) }

func (h *hub) put(o *workv1.ManifestWork) *workv1.ManifestWork {
	h.rv++
	o.ResourceVersion = strconv.Itoa(h.rv)
	key := keyOf(o)
	gone := o.DeletionTimestamp != nil && len(o.Finalizers) == 0
	if gone {
		delete(h.works, key)
	} else {
		h.works[key] = o
	}
	h.log = append(h.log, hubEvent{o, gone})
	return o
}

// lagsOverDeletions: informers may lag so far that a deletion is news to them.
const lagsOverDeletions = false

// lag is how many events informers may lag that lag up to n.
func (h *hub) lag(n int) int {
	n = min(n, len(h.log))
	for i := range n {
		if h.log[len(h.log)-1-i].o.DeletionTimestamp != nil && !lagsOverDeletions {
			return i
		}
	}
	return n
}

// before returns the works as they were before the last n events.
func (h *hub) before(n int) []*workv1.ManifestWork {
	works := map[string]*workv1.ManifestWork{}
	for _, e := range h.log[:len(h.log)-n] {
		key := keyOf(e.o)
		if e.gone {
			delete(works, key)
		} else {
			works[key] = e.o
		}
	}
	list := make([]*workv1.ManifestWork, 0, len(works))
	for _, key := range slices.Sorted(maps.Keys(works)) {
		list = append(list, works[key])
	}
	return list
}

func (h *hub) create(cluster, name string, bits uint32) *workv1.ManifestWork {
	if h.works[cluster+"/"+name] != nil {
		return nil
	}
	h.uids++
	uid := fmt.Sprintf("hub-%d", h.uids)
	o := &workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{
		Namespace: cluster, Name: name, UID: types.UID(uid), Generation: 1, Labels: map[string]string{"l": "0"},
	}}
	o.Spec.Workload.Manifests = manifests(uid, "hub-"+name, 1, bits)
	return h.put(o)
}

// lifeOf tells what a work is after a restore from what it was before.
func (h *hub) lifeOf(o *workv1.ManifestWork) string {
	if h.life == 0 {
		return string(o.UID)
	}
	return fmt.Sprintf("%s#%d", o.UID, h.life)
}

// hubBackup is a copy of a hub's storage.
type hubBackup struct {
	works map[string]*workv1.ManifestWork
	state map[string]string
	rv    int
}

func (h *hub) backup() *hubBackup {
	return &hubBackup{works: maps.Clone(h.works), state: h.state, rv: h.rv}
}

// restore puts a copy in the place of the storage.
func (h *hub) restore(b *hubBackup) {
	before := map[types.UID]*workv1.ManifestWork{}
	for _, o := range h.works {
		before[o.UID] = o
	}
	h.works, h.state, h.rv = maps.Clone(b.works), b.state, b.rv
	h.life++
	h.log = nil
	h.w.oracle.backInTime("hub-")
	for _, key := range h.keys() {
		o := h.works[key]
		h.w.oracle.backOnHub(o)
		delete(before, o.UID)
		h.log = append(h.log, hubEvent{o, false})
	}
	for _, o := range before {
		h.w.oracle.lostOnHub(o)
	}
}

func (h *hub) change(key string, f func(*workv1.ManifestWork)) *workv1.ManifestWork {
	o := h.works[key].DeepCopy()
	f(o)
	return h.put(o)
}

func (h *hub) update(key string, bits uint32) *workv1.ManifestWork {
	return h.change(key, func(o *workv1.ManifestWork) {
		o.Generation++
		o.Spec.Workload.Manifests = manifests(h.lifeOf(o), "hub-"+o.Name, o.Generation, bits)
	})
}

// orphan lets the objects of a work outlive it, or no longer.
func (h *hub) orphan(key string) {
	h.change(key, func(o *workv1.ManifestWork) {
		o.Generation++
		o.Spec.DeleteOption = otherOption(o.Spec.DeleteOption)
		h.w.oracle.option(string(o.UID), o)
	})
}

func (h *hub) label(key string) *workv1.ManifestWork {
	return h.change(key, func(o *workv1.ManifestWork) { o.Labels = map[string]string{"l": strconv.Itoa(h.rv)} })
}

func (h *hub) delete(key string) {
	h.w.oracle.deletedAtSource(string(h.works[key].UID), h.works[key])
	h.change(key, func(o *workv1.ManifestWork) {
		o.Generation++
		now := metav1.NewTime(time.Now().Truncate(time.Second))
		o.DeletionTimestamp = &now
	})
}

// write is a request of the hub source with its preconditions.
func (h *hub) write(old *workv1.ManifestWork, f func(*workv1.ManifestWork)) (*workv1.ManifestWork, error) {
	live, err := h.get(old.Namespace, old.Name)
	if err != nil {
		return nil, err
	}
	if live.UID != old.UID || live.ResourceVersion != old.ResourceVersion {
		return nil, apierrors.NewConflict(worksResource, old.Name, fmt.Errorf("it is at %s", live.ResourceVersion))
	}
	return h.change(old.Namespace+"/"+old.Name, f), nil
}

// position is the answer to a list that no cache gave.
func (h *hub) position() (*codec.HubPosition, error) {
	if h.down {
		return nil, unavailableHub()
	}
	return &codec.HubPosition{UID: hubUID, ResourceVersion: strconv.Itoa(h.rv)}, nil
}

// save writes the ConfigMap of the hub source.
func (h *hub) save(data map[string]string) error {
	if h.down {
		return unavailableHub()
	}
	h.rv++
	h.state = data
	return nil
}

func (h *hub) get(namespace, name string) (*workv1.ManifestWork, error) {
	o := h.works[namespace+"/"+name]
	switch {
	case h.down:
		return nil, apierrors.NewServiceUnavailable("the hub is down")
	case o == nil:
		return nil, apierrors.NewNotFound(worksResource, name)
	}
	return o, nil
}
