// Package fakehub is a hub's kube-apiserver for tests of registration. It stores the objects of registration,
// with resource versions and conflicts, finalizers, status subresources, lists and watches. It reviews tokens,
// and access by its RBAC objects. It is an [http.RoundTripper] and an [http.Handler], so that real clients run
// on it, also in a synctest bubble. The caller controls faults: [Server.Fault] decides about each request.
//
// It has no admission, no schemas and no defaults beyond its table of resources.
package fakehub

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
)

// Object is any object in JSON form. Stored objects are never modified, only replaced.
type Object = map[string]any

// Resource is a served resource.
type Resource struct {
	Group, Version, Name, Kind string
	Namespaced                 bool
}

// Resources are the served resources, unless some are removed.
var Resources = []Resource{
	{"", "v1", "namespaces", "Namespace", false},
	{"", "v1", "events", "Event", true},
	{"", "v1", "secrets", "Secret", true},
	{"", "v1", "configmaps", "ConfigMap", true},
	{"", "v1", "serviceaccounts", "ServiceAccount", true},
	{"", "v1", "nodes", "Node", false},
	{"apps", "v1", "deployments", "Deployment", true},
	{"events.k8s.io", "v1", "events", "Event", true},
	{"coordination.k8s.io", "v1", "leases", "Lease", true},
	{"certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest", false},
	{"rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", false},
	{"rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", false},
	{"rbac.authorization.k8s.io", "v1", "roles", "Role", true},
	{"rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", true},
	{"apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", false},
	{"cluster.open-cluster-management.io", "v1", "managedclusters", "ManagedCluster", false},
	{"cluster.open-cluster-management.io", "v1alpha1", "clusterclaims", "ClusterClaim", false},
	{"cluster.open-cluster-management.io", "v1beta2", "managedclustersets", "ManagedClusterSet", false},
	{"addon.open-cluster-management.io", "v1alpha1", "managedclusteraddons", "ManagedClusterAddOn", true},
	{"addon.open-cluster-management.io", "v1beta1", "managedclusteraddons", "ManagedClusterAddOn", true},
	{"work.open-cluster-management.io", "v1", "manifestworks", "ManifestWork", true},
	{"work.open-cluster-management.io", "v1", "appliedmanifestworks", "AppliedManifestWork", false},
}

// Server is one kube-apiserver. Its methods may be called concurrently.
type Server struct {
	// Now is its clock; nil means the clock of the machine.
	Now func() time.Time
	// Fault decides about each request before it is served; nil serves all.
	Fault func(r *Request) Fault
	// Audit receives each request and its status code, one request at a time. May be nil.
	Audit func(r *Request, code int)

	mu      sync.Mutex
	rv      int
	uids    int
	oldest  int // no watch can begin before this version
	served  map[string]Resource
	objects map[string]map[string]*stored // by resource, by "namespace/name"
	log     map[string][]change           // by resource, in order
	watches map[*watcher]bool
	tokens  *issuer
}

// stored is one object.
type stored struct {
	Object
	rv   int
	json []byte
}

// change is one change for watches.
type change struct {
	rv       int
	old, now *stored // nil: did not exist, no longer exists
}

// New returns a server with the namespaces kube-system and default.
func New() *Server {
	s := &Server{rv: 1, objects: map[string]map[string]*stored{}, log: map[string][]change{}, watches: map[*watcher]bool{}, served: map[string]Resource{}}
	s.tokens = newIssuer()
	for _, r := range Resources {
		s.served[r.Group+"/"+r.Version+"/"+r.Name] = r
	}
	for _, name := range []string{"kube-system", "default"} {
		s.Put("namespaces", Object{"metadata": Object{"name": name}})
	}
	return s
}

// Without removes resources, by name, or by "group/version/name".
func (s *Server) Without(names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.served, func(key string, r Resource) bool {
		return slices.Contains(names, key) || slices.Contains(names, r.Name)
	})
}

// Config returns a client configuration in this process for user; "admin" may do everything.
func (s *Server) Config(user string) *rest.Config {
	c := &rest.Config{Host: "http://hub", Transport: s, BearerToken: user, QPS: -1}
	c.AcceptContentTypes, c.ContentType = "application/json", "application/json"
	return c
}

// id is the storage key of all versions of a resource.
func id(resource, group string) string {
	if group == "events.k8s.io" {
		group = ""
	}
	return resource + "." + group
}

// resourceID finds a resource by its name alone.
func (s *Server) resourceID(name string) (string, Resource) {
	for _, r := range Resources {
		if r.Name == name {
			return id(r.Name, r.Group), r
		}
	}
	panic("hubapi: no resource " + name)
}

// Actions of a kubectl user, and reads of a test.

// Put creates an object of a resource, or replaces all of it but its uid.
func (s *Server) Put(resource string, o Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept, r := s.resourceID(resource)
	n := clone(o)
	if n["apiVersion"] == nil {
		n["apiVersion"], n["kind"] = strings.TrimPrefix(r.Group+"/"+r.Version, "/"), r.Kind
	}
	old := s.objects[kept][key(meta(n))]
	if old == nil {
		s.create(kept, n)
		return
	}
	meta(n)["uid"], meta(n)["creationTimestamp"] = meta(old.Object)["uid"], meta(old.Object)["creationTimestamp"]
	s.store(kept, old, n)
}

// PutRegistrar lets a user create certificate requests, as the registration source for clusters must.
func (s *Server) PutRegistrar(user string) {
	s.Put("clusterroles", Object{"metadata": Object{"name": "registrar"}, "rules": []any{
		Object{"verbs": []any{"create"}, "apiGroups": []any{"certificates.k8s.io"}, "resources": []any{"certificatesigningrequests"}},
	}})
	s.Put("clusterrolebindings", Object{"metadata": Object{"name": "registrar"}, "roleRef": Object{"kind": "ClusterRole", "name": "registrar"},
		"subjects": []any{Object{"kind": "User", "name": user}}})
}

// Get returns the current object, nil if there is none. It must not be modified.
func (s *Server) Get(resource, namespace, name string) Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept, _ := s.resourceID(resource)
	if o := s.objects[kept][namespace+"/"+name]; o != nil {
		return o.Object
	}
	return nil
}

// All returns the objects of a resource, sorted by name.
func (s *Server) All(resource string) (all []Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept, _ := s.resourceID(resource)
	for _, k := range slices.Sorted(maps.Keys(s.objects[kept])) {
		all = append(all, s.objects[kept][k].Object)
	}
	return all
}

// Name returns the name of an object.
func Name(o Object) string {
	m, _ := o["metadata"].(Object)
	name, _ := m["name"].(string)
	return name
}

// Conditions returns the conditions in an object's status, nil if there are none.
func Conditions(o Object) []any {
	status, _ := o["status"].(Object)
	conditions, _ := status["conditions"].([]any)
	return conditions
}

// Change changes an object atomically. It returns false if there is none.
func (s *Server) Change(resource, namespace, name string, do func(o Object)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept, _ := s.resourceID(resource)
	old := s.objects[kept][namespace+"/"+name]
	if old == nil {
		return false
	}
	n := clone(old.Object)
	do(n)
	s.store(kept, old, n)
	return true
}

// Delete deletes an object as kubectl does: it is removed when its finalizers are gone.
func (s *Server) Delete(resource, namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept, _ := s.resourceID(resource)
	if old := s.objects[kept][namespace+"/"+name]; old != nil {
		s.remove(kept, old)
	}
}

// ForceDelete removes an object, with or without finalizers.
func (s *Server) ForceDelete(resource, namespace, name string) {
	s.Change(resource, namespace, name, func(o Object) { delete(meta(o), "finalizers") })
	s.Delete(resource, namespace, name)
}

// Backup is a copy of all objects.
type Backup struct {
	rv      int
	objects map[string]map[string]*stored
}

// Backup returns a copy of all objects.
func (s *Server) Backup() *Backup {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := &Backup{rv: s.rv, objects: map[string]map[string]*stored{}}
	for r, all := range s.objects {
		b.objects[r] = maps.Clone(all)
	}
	return b
}

// Restore replaces the content by the backup, without the resources in missing, by name. Resource versions go
// back, and watches end.
func (s *Server) Restore(b *Backup, missing ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rv, s.objects, s.log = b.rv, map[string]map[string]*stored{}, map[string][]change{}
	for r, all := range b.objects {
		s.objects[r] = maps.Clone(all)
	}
	for _, name := range missing {
		kept, _ := s.resourceID(name)
		delete(s.objects, kept)
	}
	s.oldest = s.rv
	s.endWatches()
}

// EndWatches ends all watches.
func (s *Server) EndWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endWatches()
}

func (s *Server) endWatches() {
	for w := range s.watches {
		w.end()
	}
}

// The store. The caller holds the lock.

func (s *Server) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now()
}

func (s *Server) create(kept string, o Object) *stored {
	s.uids++
	m := meta(o)
	delete(m, "deletionTimestamp")
	m["uid"], m["generation"] = fmt.Sprintf("%08d-0000-4000-8000-000000000000", s.uids), 1.0
	m["creationTimestamp"] = s.now().UTC().Format(time.RFC3339)
	return s.store(kept, nil, o)
}

// store writes an object and notifies the watches.
func (s *Server) store(kept string, old *stored, o Object) *stored {
	m := meta(o)
	if old != nil {
		m["resourceVersion"] = meta(old.Object)["resourceVersion"]
		if !reflect.DeepEqual(old.Object["spec"], o["spec"]) {
			generation, _ := meta(old.Object)["generation"].(float64)
			m["generation"] = generation + 1
		}
		if reflect.DeepEqual(old.Object, o) {
			return old // a kube-apiserver writes nothing in this case
		}
	}
	s.rv++
	m["resourceVersion"] = strconv.Itoa(s.rv)
	b, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	n := &stored{Object: o, rv: s.rv, json: b}
	finalizers, _ := m["finalizers"].([]any)
	c := change{rv: s.rv, old: old, now: n}
	if m["deletionTimestamp"] != nil && len(finalizers) == 0 {
		delete(s.objects[kept], key(m))
		c = change{rv: s.rv, old: n}
	} else {
		if s.objects[kept] == nil {
			s.objects[kept] = map[string]*stored{}
		}
		s.objects[kept][key(m)] = n
	}
	s.notify(kept, c)
	if strings.HasPrefix(kept, "namespaces.") && c.now == nil {
		s.empty(m["name"].(string))
	}
	return n
}

// keptChanges is the number of changes that a watch may lag behind.
const keptChanges = 20000

func (s *Server) notify(kept string, c change) {
	log := append(s.log[kept], c)
	if len(log) > keptChanges {
		s.oldest = max(s.oldest, log[len(log)/2].rv)
		log = slices.Clone(log[len(log)/2:])
	}
	s.log[kept] = log
	for w := range s.watches {
		if w.kept == kept {
			w.changed(c)
		}
	}
}

// remove deletes an object, or sets its deletion timestamp if it has finalizers.
func (s *Server) remove(kept string, old *stored) *stored {
	n := clone(old.Object)
	if meta(n)["deletionTimestamp"] == nil {
		meta(n)["deletionTimestamp"] = s.now().UTC().Format(time.RFC3339)
	} else if finalizers, _ := meta(n)["finalizers"].([]any); len(finalizers) > 0 {
		return old
	}
	return s.store(kept, old, n)
}

// empty removes the objects of a deleted namespace.
func (s *Server) empty(namespace string) {
	for kept, all := range s.objects {
		for _, k := range slices.Sorted(maps.Keys(all)) {
			if strings.HasPrefix(k, namespace+"/") {
				s.remove(kept, all[k])
			}
		}
	}
}

func meta(o Object) Object {
	m, ok := o["metadata"].(Object)
	if !ok {
		m = Object{}
		o["metadata"] = m
	}
	return m
}

func key(m Object) string {
	namespace, _ := m["namespace"].(string)
	name, _ := m["name"].(string)
	return namespace + "/" + name
}

func clone(o Object) Object {
	b, err := json.Marshal(o)
	var n Object
	if err = errors.Join(err, json.Unmarshal(b, &n)); err != nil {
		panic(err)
	}
	return n
}

func labelsOf(o Object) labels.Set {
	set := labels.Set{}
	l, _ := meta(o)["labels"].(Object)
	for k, v := range l {
		set[k], _ = v.(string)
	}
	return set
}

// list returns the objects of a resource in a namespace, in all for "".
func (s *Server) list(kept, namespace string, f filter) (all []*stored) {
	for _, o := range s.objects[kept] {
		ns, _ := meta(o.Object)["namespace"].(string)
		if (namespace == "" || ns == namespace) && f.matches(o.Object) {
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b *stored) int { return cmp.Compare(key(meta(a.Object)), key(meta(b.Object))) })
	return all
}

var _ http.RoundTripper = (*Server)(nil)
