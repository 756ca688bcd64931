package hubsource

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	workversioned "open-cluster-management.io/api/client/work/clientset/versioned"
	workv1 "open-cluster-management.io/api/work/v1"
)

// fakeHub is the part of a kube-apiserver that a hub source uses. It has resource versions with conflicts,
// generations, finalizers, the status subresource, lists, watches, and label selectors. It is an
// http.RoundTripper, so that the real clients use it, also in a synctest bubble.
type fakeHub struct {
	t *testing.T

	mu           sync.Mutex
	rv, uids     int
	down         bool
	forbidden    map[string]bool // "resource" or "VERB resource"
	absent       map[string]bool // resources without an API
	objects      map[string]map[string]object
	watches      map[*hubWatch]bool
	unresponsive bool           // watches continue from any position, as after a restore
	calls        map[string]int // requests by verb and resource
	faults       hubFaults
}

type object = map[string]any

type hubWatch struct {
	resource string
	selector labels.Selector
	pending  []object
	wake     chan struct{}
	stop     context.CancelFunc
}

func newFakeHub(t *testing.T) *fakeHub {
	h := &fakeHub{t: t, rv: 100, objects: map[string]map[string]object{}, watches: map[*hubWatch]bool{},
		forbidden: map[string]bool{}, absent: map[string]bool{}, calls: map[string]int{}}
	h.objects["namespaces"] = map[string]object{"kube-system": {
		"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
		"metadata": object{"name": "kube-system", "uid": "uid-hub", "resourceVersion": "1"},
	}}
	return h
}

// kinds of the resources served.
var kinds = map[string][2]string{
	"manifestworks":   {"work.open-cluster-management.io/v1", "ManifestWork"},
	"managedclusters": {"meta.k8s.io/v1", "PartialObjectMetadata"},
	"namespaces":      {"meta.k8s.io/v1", "PartialObjectMetadata"},
	"leases":          {"coordination.k8s.io/v1", "Lease"},
	"configmaps":      {"v1", "ConfigMap"},
}

func (h *fakeHub) config() *rest.Config {
	c := &rest.Config{Host: "http://hub", Transport: h, QPS: -1}
	c.AcceptContentTypes, c.ContentType = "application/json", "application/json" // the fake does not support protobuf
	return c
}

func (h *fakeHub) works() workversioned.Interface { return workversioned.NewForConfigOrDie(h.config()) }

func (h *fakeHub) metadata() metadata.Interface { return metadata.NewForConfigOrDie(h.config()) }

func (h *fakeHub) configMaps() typedcorev1.ConfigMapsGetter {
	return typedcorev1.NewForConfigOrDie(h.config())
}

func (h *fakeHub) leases() coordinationv1.LeasesGetter {
	return coordinationv1.NewForConfigOrDie(h.config())
}

// The actions of an operator with kubectl.

// apply creates a work, or changes its spec, labels and annotations.
func (h *fakeHub) apply(w *workv1.ManifestWork) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b, err := json.Marshal(w)
	if err != nil {
		h.t.Errorf("fake hub: %v", err)
	}
	o := object{}
	if err := json.Unmarshal(b, &o); err != nil {
		h.t.Errorf("fake hub: %v", err)
	}
	key := w.Namespace + "/" + w.Name
	old := h.objects["manifestworks"][key]
	if old == nil {
		h.create("manifestworks", key, o)
		return
	}
	n := deepCopy(old)
	n["spec"] = o["spec"]
	for _, field := range []string{"labels", "annotations"} {
		metaOf(n)[field] = metaOf(o)[field]
	}
	h.store("manifestworks", key, old, n)
}

// remove deletes an object as kubectl does.
func (h *fakeHub) remove(resource, key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.terminate(resource, key, h.objects[resource][key])
}

// terminate marks an object as deleted; the caller holds the lock.
func (h *fakeHub) terminate(resource, key string, old object) object {
	n := deepCopy(old)
	if metaOf(n)["deletionTimestamp"] == nil {
		metaOf(n)["deletionTimestamp"] = time.Now().UTC().Format(time.RFC3339)
		metaOf(n)["generation"] = metaOf(n)["generation"].(float64) + 1
	}
	return h.store(resource, key, old, n)
}

// tear removes a work, even if it has finalizers.
func (h *fakeHub) tear(key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	old := h.objects["manifestworks"][key]
	n := deepCopy(old)
	delete(metaOf(n), "finalizers")
	if n = h.store("manifestworks", key, old, n); metaOf(n)["deletionTimestamp"] == nil {
		h.terminate("manifestworks", key, n)
	}
}

// label sets the labels of a ManagedCluster or Namespace; nil deletes it.
func (h *fakeHub) label(resource, name string, l map[string]string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	set := object{}
	for k, v := range l {
		set[k] = v
	}
	old := h.objects[resource][name]
	if old == nil {
		h.create(resource, name, object{"metadata": object{"name": name, "labels": set}})
		return
	}
	n := deepCopy(old)
	metaOf(n)["labels"] = set
	h.store(resource, name, old, n)
}

// work returns a work as it is now, nil when there is none.
func (h *fakeHub) work(key string) *workv1.ManifestWork {
	h.mu.Lock()
	defer h.mu.Unlock()
	o := h.objects["manifestworks"][key]
	if o == nil {
		return nil
	}
	b, err := json.Marshal(o)
	w := &workv1.ManifestWork{}
	if err = errors.Join(err, json.Unmarshal(b, w)); err != nil {
		h.t.Errorf("fake hub: %v", err)
	}
	return w
}

// setDown disconnects all clients, or accepts them again.
func (h *fakeHub) setDown(down bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down = down; down {
		for w := range h.watches {
			w.stop()
		}
	}
}

func (h *fakeHub) called(call string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls[call]
}

// The store. Callers hold the lock.

func (h *fakeHub) create(resource, key string, o object) object {
	h.uids++
	m := metaOf(o)
	m["uid"], m["generation"], m["creationTimestamp"] = fmt.Sprintf("uid-%d", h.uids), 1.0, time.Now().UTC().Format(time.RFC3339)
	return h.store(resource, key, nil, o)
}

// store writes an object and notifies the watches. old is nil for a new one.
func (h *fakeHub) store(resource, key string, old, n object) object {
	h.rv++
	n["apiVersion"], n["kind"] = kinds[resource][0], kinds[resource][1]
	m := metaOf(n)
	m["resourceVersion"] = fmt.Sprint(h.rv)
	if old != nil && !reflect.DeepEqual(old["spec"], n["spec"]) {
		m["generation"] = metaOf(old)["generation"].(float64) + 1
	}
	if h.objects[resource] == nil {
		h.objects[resource] = map[string]object{}
	}
	finalizers, _ := m["finalizers"].([]any)
	gone := m["deletionTimestamp"] != nil && len(finalizers) == 0
	if gone {
		delete(h.objects[resource], key)
	} else {
		h.objects[resource][key] = n
	}
	for w := range h.watches {
		if w.resource == resource {
			w.changed(old, n, gone)
		}
	}
	h.faults.changed(resource, old, n, gone)
	return n
}

func (w *hubWatch) changed(old, n object, gone bool) {
	was, is := old != nil && matches(w.selector, old), !gone && matches(w.selector, n)
	kind := "MODIFIED"
	switch {
	case !was && !is:
		return
	case !was:
		kind = "ADDED"
	case !is:
		kind = "DELETED"
	}
	w.send(kind, n)
}

func (w *hubWatch) send(kind string, o object) {
	w.pending = append(w.pending, object{"type": kind, "object": o})
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func metaOf(o object) object { return o["metadata"].(object) }

func matches(s labels.Selector, o object) bool {
	set := labels.Set{}
	l, _ := metaOf(o)["labels"].(object)
	for k, v := range l {
		set[k] = v.(string)
	}
	return s.Matches(set)
}

func deepCopy(o object) object {
	b, err := json.Marshal(o)
	var n object
	if err = errors.Join(err, json.Unmarshal(b, &n)); err != nil {
		panic(err)
	}
	return n
}

// The requests.

// RoundTrip implements http.RoundTripper.
func (h *fakeHub) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down {
		return nil, errors.New("connect: connection refused")
	}
	if h.faults.writes != nil && r.Method != http.MethodGet {
		return h.meddle(r)
	}
	return h.serve(r)
}

// serve answers a request; the caller holds the lock.
func (h *fakeHub) serve(r *http.Request) (*http.Response, error) {
	resource, key, subresource := route(r.URL.Path)
	q := r.URL.Query()
	selector, err := labels.Parse(q.Get("labelSelector"))
	if err != nil {
		return nil, err
	}
	h.calls[r.Method+" "+resource]++
	switch {
	case h.absent[resource]:
		return status(http.StatusNotFound, "NotFound"), nil
	case h.forbidden[resource], h.forbidden[r.Method+" "+resource]:
		return status(http.StatusForbidden, "Forbidden"), nil
	case q.Get("watch") != "":
		return h.watch(r, resource, selector), nil
	case r.Method == http.MethodGet && (key == "" || resource == "manifestworks" && !strings.Contains(key, "/")):
		return respond(http.StatusOK, page(h.list(resource, key, selector), q)), nil
	case r.Method == http.MethodPost:
		body := decode(r.Body)
		key = key + "/" + metaOf(body)["name"].(string)
		if h.objects[resource][key] != nil {
			return status(http.StatusConflict, "AlreadyExists"), nil
		}
		return respond(http.StatusCreated, h.create(resource, key, body)), nil
	}
	old := h.objects[resource][key]
	switch {
	case old == nil:
		return status(http.StatusNotFound, "NotFound"), nil
	case r.Method == http.MethodGet, q.Has("dryRun"): // a dry run stores nothing
		return respond(http.StatusOK, old), nil
	}
	if r.Method == http.MethodDelete {
		return h.delete(resource, key, old, decode(r.Body)), nil
	}
	return h.update(resource, key, subresource, old, decode(r.Body), r.Method == http.MethodPatch), nil
}

func (h *fakeHub) delete(resource, key string, old, options object) *http.Response {
	preconditions, _ := options["preconditions"].(object)
	for field, want := range preconditions {
		if want != metaOf(old)[field] {
			return status(http.StatusConflict, "Conflict")
		}
	}
	return respond(http.StatusOK, h.terminate(resource, key, old))
}

func (h *fakeHub) update(resource, key, subresource string, old, change object, patch bool) *http.Response {
	for _, field := range []string{"uid", "resourceVersion"} {
		if want := metaOf(change)[field]; want != nil && want != metaOf(old)[field] {
			return status(http.StatusConflict, "Conflict")
		}
	}
	n := deepCopy(old)
	if patch {
		merge(n, change)
	} else {
		n = change
	}
	if subresource == "status" {
		only := deepCopy(old)
		only["status"] = n["status"]
		n = only
	} else if resource == "manifestworks" {
		n["status"] = old["status"]
		h.faults.letGo(old, n)
	}
	return respond(http.StatusOK, h.store(resource, key, old, n))
}

// merge is a JSON merge patch.
func merge(o, patch object) {
	for k, v := range patch {
		inner, isObject := v.(object)
		target, hasObject := o[k].(object)
		switch {
		case v == nil:
			delete(o, k)
		case isObject && hasObject:
			merge(target, inner)
		default:
			o[k] = v
		}
	}
}

// list returns the objects of a namespace, of all if it is "".
func (h *fakeHub) list(resource, namespace string, s labels.Selector) object {
	items := []any{}
	for _, key := range slices.SortedFunc(maps.Keys(h.objects[resource]), cmp.Compare) {
		if o := h.objects[resource][key]; matches(s, o) && (namespace == "" || strings.HasPrefix(key, namespace+"/")) {
			items = append(items, o)
		}
	}
	return object{"apiVersion": kinds[resource][0], "kind": kinds[resource][1] + "List",
		"metadata": object{"resourceVersion": fmt.Sprint(h.rv)}, "items": items}
}

// page returns the requested part of a list.
func page(list object, q url.Values) object {
	items := list["items"].([]any)
	from, _ := strconv.Atoi(q.Get("continue"))
	items = items[min(from, len(items)):]
	if limit, _ := strconv.Atoi(q.Get("limit")); limit > 0 && limit < len(items) {
		items = items[:limit]
		list["metadata"].(object)["continue"] = strconv.Itoa(from + limit)
	}
	list["items"] = items
	return list
}

// touch increases the resource version of the hub.
func (h *fakeHub) touch() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rv++
}

func (h *fakeHub) watch(r *http.Request, resource string, s labels.Selector) *http.Response {
	if q := r.URL.Query(); q.Get("sendInitialEvents") == "" && q.Get("resourceVersion") != fmt.Sprint(h.rv) && !h.unresponsive {
		return status(http.StatusGone, "Expired") // the fake keeps no history
	}
	ctx, stop := context.WithCancel(r.Context())
	w := &hubWatch{resource: resource, selector: s, wake: make(chan struct{}, 1), stop: stop}
	h.watches[w] = true
	if q := r.URL.Query(); q.Get("sendInitialEvents") != "" {
		list, since := h.list(resource, "", s), []hubChange(nil)
		if h.faults.mayShow(resource, q.Get("resourceVersion")) {
			list, since = h.faults.stale(h, s)
		}
		for _, o := range list["items"].([]any) {
			w.send("ADDED", o.(object))
		}
		w.send("BOOKMARK", object{"apiVersion": kinds[resource][0], "kind": kinds[resource][1], "metadata": object{
			"resourceVersion": metaOf(list)["resourceVersion"], "annotations": object{"k8s.io/initial-events-end": "true"}}})
		for _, c := range since {
			w.changed(c.old, c.now, c.gone)
		}
	}
	body, pipe := io.Pipe()
	go h.feed(ctx, w, pipe)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
		Body: stopping{body, stop}, Request: r}
}

// feed writes the events of a watch until it ends.
func (h *fakeHub) feed(ctx context.Context, w *hubWatch, pipe *io.PipeWriter) {
	for {
		select {
		case <-ctx.Done():
			h.mu.Lock()
			delete(h.watches, w)
			h.mu.Unlock()
			_ = pipe.Close()
			return
		case <-w.wake:
		}
		h.mu.Lock()
		if h.faults.lags && w.resource == "manifestworks" {
			h.mu.Unlock()
			continue // catchUp wakes the watch
		}
		events := w.pending
		w.pending = nil
		var lines []byte
		for _, e := range events {
			b, err := json.Marshal(e)
			if err != nil {
				h.t.Errorf("fake hub: %v", err)
			}
			lines = append(append(lines, b...), '\n')
		}
		h.mu.Unlock()
		_, _ = pipe.Write(lines) // the watch notices above that its reader has left
	}
}

type stopping struct {
	*io.PipeReader
	stop context.CancelFunc
}

func (s stopping) Close() error {
	s.stop()
	return s.PipeReader.Close()
}

// route splits a path into resource, key ("namespace/name", or the namespace of a collection) and subresource.
func route(path string) (resource, key, subresource string) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if parts[0] == "api" {
		parts = parts[2:]
	} else {
		parts = parts[3:]
	}
	namespace := ""
	if parts[0] == "namespaces" && len(parts) > 2 {
		namespace, parts = parts[1], parts[2:]
	}
	resource = parts[0]
	switch {
	case len(parts) == 1:
		return resource, namespace, ""
	case namespace == "":
		key = parts[1]
	default:
		key = namespace + "/" + parts[1]
	}
	if len(parts) > 2 {
		subresource = parts[2]
	}
	return resource, key, subresource
}

func decode(r io.Reader) object {
	var o object
	if err := json.NewDecoder(r).Decode(&o); err != nil {
		panic(err)
	}
	return o
}

func respond(code int, o object) *http.Response {
	b, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(string(b)))}
}

func status(code int, reason string) *http.Response {
	return respond(code, object{"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason})
}

// cuttable is a connection to the hub that can be cut for one client.
type cuttable struct {
	hub *fakeHub
	cut *bool // guarded by the hub's lock
}

// RoundTrip implements http.RoundTripper.
func (c cuttable) RoundTrip(r *http.Request) (*http.Response, error) {
	c.hub.mu.Lock()
	cut := *c.cut
	c.hub.mu.Unlock()
	if cut {
		return nil, errors.New("connect: connection refused")
	}
	return c.hub.RoundTrip(r)
}

func clientsOf(cfg *rest.Config) (workversioned.Interface, metadata.Interface, typedcorev1.ConfigMapsGetter) {
	return workversioned.NewForConfigOrDie(cfg), metadata.NewForConfigOrDie(cfg), typedcorev1.NewForConfigOrDie(cfg)
}

func leasesOf(cfg *rest.Config) coordinationv1.LeasesGetter {
	return coordinationv1.NewForConfigOrDie(cfg)
}
