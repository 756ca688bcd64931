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
)

var worksResource = schema.GroupResource{Group: "work.open-cluster-management.io", Resource: "manifestworks"}

// hub is a kube-apiserver that holds ManifestWorks: resource versions with
// conflicts, generations, uids, finalizers, and a watch that lags.
type hub struct {
	w      *world
	works  map[string]*workv1.ManifestWork // by namespace/name; never modified
	events []hubEvent                      // not seen by the informer yet
	rv     int
	uids   int
	down   bool
}

type hubEvent struct {
	o    *workv1.ManifestWork
	gone bool
}

func (h *hub) keys() []string { return slices.Sorted(maps.Keys(h.works)) }

func (h *hub) put(o *workv1.ManifestWork) *workv1.ManifestWork {
	h.rv++
	o.ResourceVersion = strconv.Itoa(h.rv)
	key := o.Namespace + "/" + o.Name
	gone := o.DeletionTimestamp != nil && len(o.Finalizers) == 0
	if gone {
		delete(h.works, key)
	} else {
		h.works[key] = o
	}
	h.events = append(h.events, hubEvent{o, gone})
	return o
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

func (h *hub) change(key string, f func(*workv1.ManifestWork)) *workv1.ManifestWork {
	o := h.works[key].DeepCopy()
	f(o)
	return h.put(o)
}

func (h *hub) update(key string, bits uint32) *workv1.ManifestWork {
	return h.change(key, func(o *workv1.ManifestWork) {
		o.Generation++
		o.Spec.Workload.Manifests = manifests(string(o.UID), "hub-"+o.Name, o.Generation, bits)
	})
}

func (h *hub) label(key string) *workv1.ManifestWork {
	return h.change(key, func(o *workv1.ManifestWork) { o.Labels = map[string]string{"l": strconv.Itoa(h.rv)} })
}

func (h *hub) delete(key string) {
	h.w.oracle.deletedAtSource(string(h.works[key].UID), string(h.works[key].UID))
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
