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

	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/hubsource/core"
	"github.com/hawser-io/hawser/pkg/codec"
)

var worksResource = schema.GroupResource{Group: "work.open-cluster-management.io", Resource: "manifestworks"}

// hub is a kube-apiserver that holds ManifestWorks: resource versions with
// conflicts, generations, uids, finalizers, and a watch that lags.
type hub struct {
	w     *world
	works map[string]*workv1.ManifestWork // by namespace/name; never modified
	log   []hubEvent                      // all events; watches read it at their own pace
	// epoch counts the restores from a backup. No watch survives a restore. log is the log of this epoch, which
	// began at since. Its first `listed` entries are the works that the hub had then.
	epoch, listed int
	since         time.Time
	// onlySeen: only the earlier observations of hub-source reveal the restore.
	onlySeen bool
	// restored is the copy that the hub was restored from. It is nil once hub-source has saved a rollback suspicion
	// on the hub. saw is the process of hub-source that had seen a later state, 0 if none had.
	restored *hubBackup
	saw      int
	// generations records in which epoch each generation was first reached.
	generations map[generation]int

	state   map[string]string // the ConfigMap of the hub source
	stateRV int               // its resource version, 0 if there is none
	saves   []hubBackup       // of the ConfigMap, in this epoch
	born    *hubBackup        // the hub at the begin of this epoch
	rv      int
	uids    int
	down    bool
	old     *hubBackup
	// refuses describes the statuses that the hub refuses, nil for none. allowed is the last refusal before the
	// present one.
	refuses *refusal
	allowed time.Time
}

const hubUID = "uid-of-the-hub"

func keyOf(o *workv1.ManifestWork) string { return o.Namespace + "/" + o.Name }

// stateUnknown is the resource version of a ConfigMap that has to be read.
const stateUnknown = -1

type hubEvent struct {
	o    *workv1.ManifestWork
	gone bool
}

func (h *hub) keys() []string { return slices.Sorted(maps.Keys(h.works)) }

func (h *hub) put(o *workv1.ManifestWork) *workv1.ManifestWork {
	h.rv += h.stride()
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

// before returns the works as they were before the last n events.
func (h *hub) before(n int) map[string]*workv1.ManifestWork {
	works := map[string]*workv1.ManifestWork{}
	for _, e := range h.log[:len(h.log)-n] {
		key := keyOf(e.o)
		if e.gone {
			delete(works, key)
		} else {
			works[key] = e.o
		}
	}
	return works
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

// byID returns the work with a uid, nil if there is none.
func (h *hub) byID(uid string) *workv1.ManifestWork {
	for _, o := range h.works {
		if string(o.UID) == uid {
			return o
		}
	}
	return nil
}

// epochOf returns the epoch of a work: its uid and the number of restores of the hub.
func (h *hub) epochOf(o *workv1.ManifestWork) string {
	if h.epoch == 0 {
		return string(o.UID)
	}
	return fmt.Sprintf("%s#%d", o.UID, h.epoch)
}

// hubBackup is a copy of a hub's storage.
type hubBackup struct {
	works   map[string]*workv1.ManifestWork
	state   map[string]string
	stateRV int
	rv      int
}

// epochs is the maximum number of restores of a hub.
const epochs = 4

// stride is the increase of the resourceVersion with each write. It is large because a real hub also writes
// other objects. After a restore the hub needs many writes to reach its earlier position, so a client that saw
// the earlier position detects the rollback. No script has the 1<<9 writes in one epoch that would hide it.
func (h *hub) stride() int { return 1 << (9 * (epochs - h.epoch)) }

func (h *hub) backup() *hubBackup {
	return &hubBackup{works: maps.Clone(h.works), state: h.state, stateRV: h.stateRV, rv: h.rv}
}

// ago returns a copy of the hub before the last n changes of its works.
func (h *hub) ago(n int) *hubBackup {
	b := &hubBackup{works: map[string]*workv1.ManifestWork{}, rv: h.born.rv, state: h.born.state, stateRV: h.born.stateRV}
	for key, o := range h.born.works {
		b.works[key] = o
	}
	for _, e := range h.log[:max(len(h.log)-n, h.listed)] {
		if delete(b.works, keyOf(e.o)); !e.gone {
			b.works[keyOf(e.o)] = e.o
		}
		if rv, err := strconv.Atoi(e.o.ResourceVersion); err == nil {
			b.rv = max(b.rv, rv)
		}
	}
	for _, s := range h.saves {
		if s.rv < b.rv {
			b.state, b.stateRV = s.state, s.stateRV
		}
	}
	return b
}

// restore replaces the storage by a copy.
func (h *hub) restore(b *hubBackup) {
	h.w.source.standBy()
	before := map[types.UID]*workv1.ManifestWork{}
	for _, o := range h.works {
		before[o.UID] = o
		h.w.oracle.older(o)
	}
	h.works, h.state, h.stateRV, h.rv = maps.Clone(b.works), b.state, b.stateRV, b.rv
	h.epoch, h.since = h.epoch+1, time.Now()
	h.log, h.saves, h.born = nil, nil, b
	h.w.oracle.backInTime("hub-")
	if h.w.oracle.released[h.w.ocmAgent.name] { // its list may be from before the release
		h.w.ocmAgent.confused = true
	}
	for _, key := range h.keys() {
		o := h.works[key]
		h.w.oracle.backOnHub(o)
		delete(before, o.UID)
		h.log = append(h.log, hubEvent{o, false})
	}
	h.listed = len(h.log)
	for _, o := range before {
		h.w.oracle.missingOnHub(o)
	}
	for _, c := range slices.Clone(h.w.calls) {
		if c.done == nil && !c.arrived {
			h.w.delay(c)
		}
	}
}

func (h *hub) change(key string, f func(*workv1.ManifestWork)) *workv1.ManifestWork {
	o := h.works[key].DeepCopy()
	f(o)
	h.count(o)
	return h.put(o)
}

// count records in which epoch a generation was first reached. An OCM agent may have seen the generation with
// another content, and cannot distinguish the two.
func (h *hub) count(o *workv1.ManifestWork) {
	g := generation{o.UID, o.Generation}
	if epoch, has := h.generations[g]; has && epoch != h.epoch && o.Namespace == h.w.ocmAgent.name {
		h.w.ocmAgent.confused = true
		if o.DeletionTimestamp != nil { // it may answer the first deletion late
			h.w.oracle.mayStay[string(o.UID)], h.w.oracle.clusters[o.Namespace].sharedMayStay = true, true
		}
	} else if !has {
		h.generations[g] = h.epoch
	}
}

// generation identifies one generation of a work.
type generation struct {
	work types.UID
	n    int64
}

func (h *hub) update(key string, bits uint32) *workv1.ManifestWork {
	return h.change(key, func(o *workv1.ManifestWork) {
		o.Generation++
		o.Spec.Workload.Manifests = manifests(h.epochOf(o), "hub-"+o.Name, o.Generation, bits)
	})
}

// orphan switches the Orphan option of a work on or off.
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
	o := h.change(key, func(o *workv1.ManifestWork) {
		o.Generation++
		now := metav1.NewTime(time.Now().Truncate(time.Second))
		o.DeletionTimestamp = &now
	})
	if h.works[key] == nil { // a restored hub has works without a finalizer
		h.w.oracle.torn(o)
	}
}

// tear removes a work from the hub without its finalizer, before any cleanup.
func (h *hub) tear(key string) {
	if h.works[key].DeletionTimestamp == nil {
		h.delete(key)
	}
	if h.works[key] != nil {
		h.w.oracle.torn(h.change(key, func(o *workv1.ManifestWork) { o.Finalizers = nil }))
	}
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

// position is the answer to a list that no cache answered.
func (h *hub) position() (*codec.HubPosition, error) {
	if h.down {
		return nil, unavailableHub()
	}
	return &codec.HubPosition{UID: hubUID, ResourceVersion: strconv.Itoa(h.rv)}, nil
}

// present lists the works of a namespace.
func (h *hub) present(namespace string) (core.Present, error) {
	if h.down {
		return nil, unavailableHub()
	}
	present := core.Present{}
	for _, o := range h.works {
		if o.Namespace == namespace {
			present[o.UID] = o.ResourceVersion
		}
	}
	return present, nil
}

// kept returns the saved state of hub-source.
func (h *hub) kept() core.SavedState {
	s := core.StateOf(h.state)
	if h.stateRV > 0 {
		s.Version = strconv.Itoa(h.stateRV)
	}
	return s
}

// save writes the ConfigMap of hub-source. It returns a conflict if hub-source has not read or written the
// present version. After a conflict, hub-source reads it again.
func (h *hub) save(data map[string]string, last *int) error {
	have := *last
	switch *last = stateUnknown; {
	case h.down:
		return unavailableHub()
	case have != stateUnknown && have != h.stateRV:
		return apierrors.NewConflict(worksResource, "state", fmt.Errorf("it is at %d", h.stateRV))
	}
	h.rv += h.stride()
	h.stateRV, *last = h.rv, h.rv
	h.state = data
	h.saves = append(h.saves, hubBackup{state: data, stateRV: h.rv, rv: h.rv})
	if len(core.StateOf(data).Withheld) > 0 {
		h.onlySeen, h.restored = false, nil
	}
	return nil
}

// mayForget reports whether the broker may continue with an older store. Until the suspicion is saved on the
// hub, the broker or hub-source must know that the hub was restored.
func (h *hub) mayForget(b *mem.Backup) bool {
	if h.restored == nil || knowsLater(mem.Open(mem.Options{From: b, NewID: h.w.newID}), h.restored) {
		return true
	}
	h.onlySeen = h.saw == h.w.source.process
	return h.onlySeen
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
