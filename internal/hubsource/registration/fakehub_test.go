package registration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/rest"
)

// fakeHub is the part of a kube-apiserver that registration uses. It allows hub-source only what the roles in
// deploy/hub-source-registration grant.
type fakeHub struct {
	t     testing.TB
	roles roles

	mu      sync.Mutex
	changed chan struct{} // closed at each change
	rv      int
	objects map[string]map[string]obj // by group/resource, then namespace/name
	log     []event
	missing map[string]bool // groups/versions without an API
	down    bool
	slow    time.Duration // duration of a patch
	// tokens are the users of tokens; denied is what SubjectAccessReviews refuse, as "verb user".
	tokens map[string]string
	denied map[string]bool
	// requests counts requests by "verb resource[/subresource]". as is the user of the last one.
	requests map[string]int
	as       map[string]string
}

type event struct {
	rv              int
	resource, class string
	object          obj
}

func newFakeHub(t testing.TB) *fakeHub {
	return &fakeHub{
		t: t, roles: shippedRoles(t, "rbac.yaml"), changed: make(chan struct{}), rv: 100, objects: map[string]map[string]obj{}, missing: map[string]bool{},
		tokens: map[string]string{}, denied: map[string]bool{}, requests: map[string]int{}, as: map[string]string{},
	}
}

func (h *fakeHub) config() *rest.Config {
	c := &rest.Config{Host: "http://hub", Transport: h, QPS: -1}
	c.AcceptContentTypes, c.ContentType = "application/json", "application/json" // the fake does not support protobuf
	return c
}

// put creates or replaces an object, as a user of the hub does.
func (h *fakeHub) put(resource, namespace, name string, o obj) {
	h.mu.Lock()
	defer h.mu.Unlock()
	o = jsonOf(h.t, o)
	meta, _ := o["metadata"].(obj)
	if meta == nil {
		meta = obj{}
		o["metadata"] = meta
	}
	meta["name"] = name
	if namespace != "" {
		meta["namespace"] = namespace
	}
	h.store(resource, o)
}

// change changes an object.
func (h *fakeHub) change(resource, namespace, name string, change func(o obj)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	o := jsonOf(h.t, h.objects[resource][namespace+"/"+name])
	change(o)
	h.store(resource, o)
}

// remove deletes an object.
func (h *fakeHub) remove(resource, namespace, name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop(resource, namespace+"/"+name)
}

// get returns an object, nil if there is none.
func (h *fakeHub) get(resource, namespace, name string) obj {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.objects[resource][namespace+"/"+name]
}

func (h *fakeHub) count(request string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.requests[request]
}

func (h *fakeHub) setDown(down bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.down = down
}

func (h *fakeHub) setSlow(slow time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.slow = slow
}

// linger waits for the duration of a patch. It returns an error if the client gave up.
func (h *fakeHub) linger(r *http.Request) error {
	h.mu.Lock()
	slow := h.slow
	h.mu.Unlock()
	if slow == 0 || r.Method != http.MethodPatch {
		return r.Context().Err()
	}
	select {
	case <-r.Context().Done():
		return r.Context().Err()
	case <-time.After(slow):
		return nil
	}
}

func keyOf(o obj) string {
	meta, _ := o["metadata"].(obj)
	namespace, _ := meta["namespace"].(string)
	return fmt.Sprintf("%s/%s", namespace, meta["name"])
}

// store writes an object, and returns it; the caller holds the lock.
func (h *fakeHub) store(resource string, o obj) obj {
	k := keyOf(o)
	class, old := "MODIFIED", h.objects[resource][k]
	meta, _ := o["metadata"].(obj)
	h.rv++
	meta["resourceVersion"] = strconv.Itoa(h.rv)
	if old == nil {
		class = "ADDED"
		meta["uid"] = "uid-" + strconv.Itoa(h.rv)
		if h.objects[resource] == nil {
			h.objects[resource] = map[string]obj{}
		}
	}
	if old != nil {
		meta["uid"] = old["metadata"].(obj)["uid"]
	}
	h.objects[resource][k] = o
	h.notify(event{h.rv, resource, class, o})
	return o
}

func (h *fakeHub) drop(resource, k string) {
	old := h.objects[resource][k]
	if old == nil {
		return
	}
	delete(h.objects[resource], k)
	h.rv++
	o := jsonOf(h.t, old)
	o["metadata"].(obj)["resourceVersion"] = strconv.Itoa(h.rv)
	h.notify(event{h.rv, resource, "DELETED", o})
}

func (h *fakeHub) notify(e event) {
	h.log = append(h.log, e)
	close(h.changed)
	h.changed = make(chan struct{})
}

// request is a request as the hub's authorizer sees it.
type request struct {
	user, verb, group, version, resource, subresource, namespace, name string
	selector                                                           labels.Selector
	fieldName                                                          string
}

func (q request) stored() string { return strings.TrimPrefix(q.group+"/"+q.resource, "/") }

// requestOf parses a request.
func requestOf(_ testing.TB, r *http.Request) (q request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if parts[0] == "api" {
		q.version, parts = parts[1], parts[2:]
	} else {
		q.group, q.version, parts = parts[1], parts[2], parts[3:]
	}
	if len(parts) > 2 && parts[0] == "namespaces" {
		q.namespace, parts = parts[1], parts[2:]
	}
	for n, to := range []*string{&q.resource, &q.name, &q.subresource} {
		if n < len(parts) {
			*to = parts[n]
		}
	}
	q.fieldName, _ = strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
	q.selector, _ = labels.Parse(r.URL.Query().Get("labelSelector"))
	q.verb = map[string]string{http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete", http.MethodGet: "get"}[r.Method]
	if q.verb == "get" && q.name == "" {
		q.verb = "list"
		if r.URL.Query().Get("watch") != "" {
			q.verb = "watch"
		}
	}
	if q.user = r.Header.Get("Impersonate-User"); q.user == "" {
		q.user = hubSource
	}
	return q
}

// RoundTrip implements http.RoundTripper.
func (h *fakeHub) RoundTrip(r *http.Request) (*http.Response, error) {
	var body obj
	if r.Body != nil {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		if err := utiljson.Unmarshal(b, &body); err != nil {
			return nil, fmt.Errorf("body of %s: %w", r.URL, err)
		}
	}
	if err := h.linger(r); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down {
		return nil, errors.New("connect: connection refused")
	}
	if r.URL.Path == issuerPath || r.URL.Path == jwksPath {
		if !h.roles.path(r.URL.Path) {
			return refuse(http.StatusForbidden, metav1.StatusReasonForbidden), nil
		}
		return respond(http.StatusOK, obj{"issuer": "https://hub", "keys": []any{}}), nil
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if len(parts) == 3 && parts[0] == "apis" || len(parts) == 2 && parts[0] == "api" {
		return h.discover(strings.Join(parts[1:], "/")), nil
	}
	q := requestOf(h.t, r)
	h.requests[strings.TrimSuffix(q.verb+" "+q.resource+"/"+q.subresource, "/")]++
	h.as[q.verb+" "+q.resource] = q.user
	if !h.allowed(q) {
		h.t.Logf("hub: forbidden: %+v", q)
		return refuse(http.StatusForbidden, metav1.StatusReasonForbidden), nil
	}
	return h.serve(r.Context(), q, r, body), nil
}

// allowed reports whether the roles grant a request and, for an impersonated user, the impersonation.
func (h *fakeHub) allowed(q request) bool {
	name := q.name
	if q.fieldName != "" {
		name = q.fieldName
	}
	resource := strings.TrimSuffix(q.resource+"/"+q.subresource, "/")
	if q.user != hubSource {
		namespace, account, _ := strings.Cut(strings.TrimPrefix(q.user, "system:serviceaccount:"), ":")
		if !h.roles.grant(hubSource, "impersonate", "", "serviceaccounts", namespace, account) {
			return false
		}
	}
	if q.resource == "selfsubjectreviews" {
		return true // every user has this right
	}
	if h.objects["rbac.authorization.k8s.io/rolebindings"][q.namespace+"/"+tokensRole] != nil && h.roles.of[tokensRole].allows(q.verb, q.group, resource, name) {
		return true
	}
	return h.roles.grant(q.user, q.verb, q.group, resource, q.namespace, name)
}

func (h *fakeHub) discover(gv string) *http.Response {
	if h.missing[gv] {
		return refuse(http.StatusNotFound, metav1.StatusReasonNotFound)
	}
	l := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: gv}
	for _, k := range append(slices.Clone(kinds), ofEarliest) {
		l.APIResources = append(l.APIResources, metav1.APIResource{Name: k.resource.Resource})
	}
	return respond(http.StatusOK, l)
}

// serve answers an allowed request; the caller holds the lock.
func (h *fakeHub) serve(ctx context.Context, q request, r *http.Request, body obj) *http.Response {
	if res := h.review(q, body); res != nil {
		return res
	}
	k := q.namespace + "/" + q.name
	old := h.objects[q.stored()][k]
	switch {
	case q.verb == "watch" && r.URL.Query().Get("sendInitialEvents") != "":
		return refuse(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid) // the client falls back to a list
	case q.verb == "watch":
		from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
		return h.watch(ctx, q, from)
	case q.verb == "list":
		return respond(http.StatusOK, h.list(q))
	case q.verb == "create" && q.subresource == "token":
		return h.token(q, body)
	case q.verb == "create" && h.objects[q.stored()][keyOf(body)] != nil:
		return refuse(http.StatusConflict, metav1.StatusReasonAlreadyExists)
	case q.verb == "create":
		if q.user != hubSource {
			body["spec"].(obj)["username"] = q.user
		}
		return respond(http.StatusCreated, h.store(q.stored(), body))
	case old == nil:
		return refuse(http.StatusNotFound, metav1.StatusReasonNotFound)
	case q.verb == "get":
		return respond(http.StatusOK, q.as(old))
	case q.verb == "delete":
		h.drop(q.stored(), k)
		return respond(http.StatusOK, metav1.Status{Status: metav1.StatusSuccess})
	}
	return h.write(q, old, body)
}

// write updates or patches an object.
func (h *fakeHub) write(q request, old, body obj) *http.Response {
	n, was := jsonOf(h.t, old), old["metadata"].(obj)
	sent, _ := body["metadata"].(obj)
	for _, field := range []string{"uid", "resourceVersion"} {
		if v := sent[field]; v != nil && v != was[field] {
			return refuse(http.StatusConflict, metav1.StatusReasonConflict)
		}
	}
	if q.verb == "update" {
		if sent["resourceVersion"] == nil {
			return refuse(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		}
		n["status"] = body["status"] // the request updates the status subresource
	} else {
		for field, v := range body {
			if field == "metadata" {
				continue
			}
			into, _ := n[field].(obj)
			if into == nil {
				into = obj{}
			}
			maps.Copy(into, v.(obj))
			n[field] = into
		}
	}
	return respond(http.StatusOK, q.as(h.store(q.stored(), n)))
}

// review answers a review; nil: the request is no review.
func (h *fakeHub) review(q request, body obj) *http.Response {
	spec, _ := body["spec"].(obj)
	switch q.resource {
	case "tokenreviews":
		user, ok := h.tokens[fmt.Sprint(spec["token"])]
		audiences := spec["audiences"]
		if audiences == nil && ok {
			audiences = []any{"https://api"}
		}
		body["status"] = obj{"authenticated": ok, "user": obj{"username": user, "groups": []any{"g"}}, "audiences": audiences, "error": "secret reason"}
	case "subjectaccessreviews":
		attributes, _ := spec["resourceAttributes"].(obj)
		body["status"] = obj{"allowed": !h.denied[fmt.Sprint(attributes["verb"], " ", spec["user"])]}
	case "selfsubjectreviews":
		body["status"] = obj{"userInfo": obj{"username": hubSource}}
	default:
		return nil
	}
	body["apiVersion"] = q.group + "/" + q.version
	return respond(http.StatusCreated, body)
}

func (h *fakeHub) token(q request, body obj) *http.Response {
	if uid := body["metadata"].(obj)["uid"]; uid != nil {
		return refuse(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	}
	body["status"] = obj{"token": "token of " + q.namespace + "/" + q.name, "expirationTimestamp": "2030-01-01T00:00:00Z"}
	return respond(http.StatusCreated, body)
}

func (q request) matches(o obj) bool {
	meta, _ := o["metadata"].(obj)
	set := labels.Set{}
	l, _ := meta["labels"].(obj)
	for k, v := range l {
		set[k], _ = v.(string)
	}
	return q.selector.Matches(set) && (q.fieldName == "" || q.fieldName == meta["name"])
}

func (q request) as(o obj) obj {
	n := maps.Clone(o)
	n["apiVersion"] = strings.TrimPrefix(q.group+"/"+q.version, "/")
	if n["kind"] == nil {
		n["kind"] = "Some"
	}
	return n
}

func (h *fakeHub) list(q request) obj {
	items := []any{}
	for _, k := range slices.Sorted(maps.Keys(h.objects[q.stored()])) {
		if o := h.objects[q.stored()][k]; q.matches(o) {
			items = append(items, q.as(o))
		}
	}
	return obj{"apiVersion": strings.TrimPrefix(q.group+"/"+q.version, "/"), "kind": "SomeList", "metadata": obj{"resourceVersion": strconv.Itoa(h.rv)}, "items": items}
}

// watch sends the changes after a resource version, until the request ends.
func (h *fakeHub) watch(ctx context.Context, q request, from int) *http.Response {
	r, w := io.Pipe()
	go func() {
		defer func() { _ = w.Close() }()
		for at := 0; ; {
			h.mu.Lock()
			events, changed := h.log[at:], h.changed
			at = len(h.log)
			h.mu.Unlock()
			for _, e := range events {
				if e.rv <= from || e.resource != q.stored() || !q.matches(e.object) {
					continue
				}
				line, err := json.Marshal(obj{"type": e.class, "object": q.as(e.object)})
				if err == nil {
					_, err = w.Write(append(line, '\n'))
				}
				if err != nil {
					return
				}
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: r}
}

func respond(code int, v any) *http.Response {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(b))}
}

func refuse(code int, reason metav1.StatusReason) *http.Response {
	return respond(code, metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: reason, Code: int32(code), Message: "refused: " + string(reason),
	})
}
