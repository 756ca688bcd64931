package fakehub

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/scheme"
)

// Request is a parsed request.
type Request struct {
	// Verb is the RBAC verb: get, list, watch, create, update, patch, delete, deletecollection.
	Verb                         string
	Resource                     Resource
	Namespace, Name, Subresource string
	User                         string
	Groups                       []string
	path                         string
	query                        url.Values
	contentType                  string
	body                         []byte
	watch, discovers, ok         bool
}

// String returns the request in the form of an audit log.
func (q *Request) String() string {
	what := q.Resource.Name
	if q.Subresource != "" {
		what += "/" + q.Subresource
	}
	return strings.TrimSpace(q.Verb + " " + what + " " + strings.Trim(q.Namespace+"/"+q.Name, "/"))
}

// Fault is the treatment of a request.
type Fault int

// The faults.
const (
	// Serves: serve the request.
	Serves Fault = iota
	// Refuses: answer 503 and do nothing.
	Refuses
	// LosesAnswer: perform the request, and break the connection.
	LosesAnswer
	// Breaks: break the connection and do nothing.
	Breaks
)

// errReset is a client's error for a broken connection.
var errReset = errors.New("read: connection reset by peer")

// RoundTrip implements [http.RoundTripper].
func (s *Server) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	q, err := s.parse(r)
	if err != nil {
		return nil, err
	}
	fault := Serves
	if s.Fault != nil && !q.discovers {
		fault = s.Fault(q)
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	switch fault {
	case Refuses:
		return answer(failure(http.StatusServiceUnavailable, "ServiceUnavailable", "the hub is down")), nil
	case Breaks:
		return nil, errReset
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var a reply
	if q.watch && s.authorized(q) {
		a = s.watch(r.Context(), q)
	} else {
		a = s.serve(q)
	}
	if s.Audit != nil {
		s.Audit(q, a.code)
	}
	if fault == LosesAnswer {
		return nil, errReset
	}
	return answer(a), nil
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a, err := s.RoundTrip(r)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer a.Body.Close()
	w.Header().Set("Content-Type", a.Header.Get("Content-Type"))
	w.WriteHeader(a.StatusCode)
	flush := http.NewResponseController(w)
	buffer := make([]byte, 32<<10)
	for {
		n, err := a.Body.Read(buffer)
		if n > 0 {
			if _, err := w.Write(buffer[:n]); err != nil {
				return // the client has disconnected
			}
			_ = flush.Flush() // an error means that the client has disconnected
		}
		if err != nil {
			return
		}
	}
}

// reply is an answer.
type reply struct {
	code int
	json []byte
	body io.ReadCloser // of a watch
}

func answer(a reply) *http.Response {
	if a.body == nil {
		a.body = io.NopCloser(bytes.NewReader(a.json))
	}
	return &http.Response{
		StatusCode: a.code, Status: fmt.Sprint(a.code, " ", http.StatusText(a.code)), Body: a.body, ContentLength: -1,
		Header: http.Header{"Content-Type": {"application/json"}}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
}

func done(code int, what any) reply {
	b, err := json.Marshal(what)
	if err != nil {
		panic(err)
	}
	return reply{code: code, json: b}
}

func failure(code int, reason, message string) reply {
	return done(code, Object{"kind": "Status", "apiVersion": "v1", "metadata": Object{}, "status": "Failure", "reason": reason, "message": message, "code": code})
}

// parse parses a request.
func (s *Server) parse(r *http.Request) (*Request, error) {
	q := &Request{path: r.URL.Path, query: r.URL.Query(), contentType: r.Header.Get("Content-Type")}
	if r.Body != nil {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		q.body = b
	}
	s.identify(r, q)
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case parts[0] == "api" && len(parts) > 2:
		q.Resource.Version, parts = parts[1], parts[2:]
	case parts[0] == "apis" && len(parts) > 3:
		q.Resource.Group, q.Resource.Version, parts = parts[1], parts[2], parts[3:]
	default:
		q.discovers = true
		return q, nil
	}
	if parts[0] == "namespaces" && len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
		q.Namespace, parts = parts[1], parts[2:]
	}
	parts = append(parts, "", "")
	q.Resource.Name, q.Name, q.Subresource = parts[0], parts[1], parts[2]
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, ok := s.served[q.Resource.Group+"/"+q.Resource.Version+"/"+q.Resource.Name]; ok {
		q.Resource, q.ok = known, true
	}
	q.watch = q.query.Get("watch") == "true" || q.query.Get("watch") == "1"
	q.Verb = verb(r.Method, q)
	return q, nil
}

func verb(method string, q *Request) string {
	switch method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	switch {
	case q.watch:
		return "watch"
	case q.Name == "":
		return "list"
	}
	return "get"
}

// filter selects the objects of a list or watch.
type filter struct {
	labels labels.Selector
	fields fields.Selector
}

func (q *Request) filter() (f filter, err error) {
	if f.labels, err = labels.Parse(q.query.Get("labelSelector")); err == nil {
		f.fields, err = fields.ParseSelector(q.query.Get("fieldSelector"))
	}
	if err == nil && q.Name != "" && q.watch {
		f.fields = fields.OneTermEqualSelector("metadata.name", q.Name)
	}
	return f, err
}

func (f filter) matches(o Object) bool {
	if !f.labels.Empty() && !f.labels.Matches(labelsOf(o)) {
		return false
	}
	for _, r := range f.fields.Requirements() {
		var at any = o
		for part := range strings.SplitSeq(r.Field, ".") {
			inner, _ := at.(Object)
			at = inner[part]
		}
		text := ""
		if at != nil {
			text = fmt.Sprint(at)
		}
		if (text == r.Value) == (r.Operator == "!=") {
			return false
		}
	}
	return true
}

// serve answers a request other than a watch; the caller holds the lock.
func (s *Server) serve(q *Request) reply {
	if q.discovers {
		return s.discover(q)
	}
	if a, special := s.review(q); special {
		return a
	}
	switch {
	case !q.ok:
		return failure(http.StatusNotFound, "NotFound", "the server could not find the requested resource")
	case !s.authorized(q):
		return failure(http.StatusForbidden, "Forbidden", fmt.Sprintf("user %q may not %s", q.User, q))
	}
	kept := id(q.Resource.Name, q.Resource.Group)
	switch q.Verb {
	case "list":
		return s.listed(q, kept)
	case "create":
		return s.created(q, kept)
	}
	old := s.objects[kept][q.Namespace+"/"+q.Name]
	if old == nil && !(q.Verb == "patch" && q.contentType == "application/apply-patch+yaml") {
		return failure(http.StatusNotFound, "NotFound", fmt.Sprintf("%s %q not found", q.Resource.Name, q.Name))
	}
	switch q.Verb {
	case "get":
		return reply{code: http.StatusOK, json: versioned(old, q.Resource)}
	case "delete":
		return s.deleted(q, kept, old)
	}
	if old != nil && q.query.Has("dryRun") { // dry run: nothing is stored
		return reply{code: http.StatusOK, json: versioned(old, q.Resource)}
	}
	return s.updated(q, kept, old)
}

// versioned returns an object in the requested version.
func versioned(o *stored, r Resource) []byte {
	want := strings.TrimPrefix(r.Group+"/"+r.Version, "/")
	if o.Object["apiVersion"] == want && o.Object["kind"] == r.Kind {
		return o.json
	}
	n := clone(o.Object)
	n["apiVersion"], n["kind"] = want, r.Kind
	b, err := json.Marshal(n)
	if err != nil {
		panic(err)
	}
	return b
}

func (s *Server) listed(q *Request, kept string) reply {
	f, err := q.filter()
	if err != nil {
		return failure(http.StatusBadRequest, "BadRequest", err.Error())
	}
	all := s.list(kept, q.Namespace, f)
	from, _ := strconv.Atoi(q.query.Get("continue")) // "" starts at the beginning
	all = all[min(from, len(all)):]
	m := Object{"resourceVersion": strconv.Itoa(s.rv)}
	if limit, _ := strconv.Atoi(q.query.Get("limit")); limit > 0 && limit < len(all) {
		m["continue"] = strconv.Itoa(from + limit)
		all = all[:limit]
	}
	items := make([]json.RawMessage, len(all))
	for i, o := range all {
		items[i] = versioned(o, q.Resource)
	}
	return done(http.StatusOK, Object{
		"apiVersion": strings.TrimPrefix(q.Resource.Group+"/"+q.Resource.Version, "/"), "kind": q.Resource.Kind + "List", "metadata": m, "items": items,
	})
}

// decode decodes the body as an object.
func (q *Request) decode() (Object, error) {
	o := Object{}
	if strings.Contains(q.contentType, "protobuf") {
		typed, _, err := scheme.Codecs.UniversalDeserializer().Decode(q.body, nil, nil)
		if err != nil {
			return nil, err
		}
		o, err = runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
		if err != nil {
			return nil, err
		}
		return clone(o), nil // numbers as in JSON
	}
	err := json.Unmarshal(q.body, &o)
	return o, err
}

func (s *Server) created(q *Request, kept string) reply {
	o, err := q.decode()
	if err != nil {
		return failure(http.StatusBadRequest, "BadRequest", err.Error())
	}
	m := meta(o)
	if q.Namespace != "" {
		m["namespace"] = q.Namespace
		if s.objects["namespaces."]["/"+q.Namespace] == nil {
			return failure(http.StatusNotFound, "NotFound", fmt.Sprintf("namespaces %q not found", q.Namespace))
		}
	}
	name, _ := m["name"].(string)
	if prefix, _ := m["generateName"].(string); name == "" && prefix != "" {
		name = fmt.Sprintf("%s%05d", prefix, s.uids+1)
		m["name"] = name
	}
	switch {
	case name == "":
		return failure(http.StatusUnprocessableEntity, "Invalid", "metadata.name: Required value")
	case m["resourceVersion"] != nil && m["resourceVersion"] != "":
		return failure(http.StatusInternalServerError, "InternalError", "resourceVersion should not be set on objects to be created")
	case s.objects[kept][key(m)] != nil:
		return failure(http.StatusConflict, "AlreadyExists", fmt.Sprintf("%s %q already exists", q.Resource.Name, name))
	}
	o["apiVersion"], o["kind"] = strings.TrimPrefix(q.Resource.Group+"/"+q.Resource.Version, "/"), q.Resource.Kind
	if hasStatus[q.Resource.Name] {
		delete(o, "status")
	}
	if q.Resource.Name == "certificatesigningrequests" {
		spec, _ := o["spec"].(Object)
		if spec == nil {
			return failure(http.StatusUnprocessableEntity, "Invalid", "spec: Required value")
		}
		groups := make([]any, len(q.Groups))
		for i, g := range q.Groups {
			groups[i] = g
		}
		spec["username"], spec["groups"] = q.User, groups
	}
	return reply{code: http.StatusCreated, json: s.create(kept, o).json}
}

// hasStatus are the resources with a status subresource.
var hasStatus = map[string]bool{
	"managedclusters": true, "certificatesigningrequests": true, "managedclusteraddons": true, "manifestworks": true, "deployments": true, "namespaces": true,
}

func (s *Server) deleted(q *Request, kept string, old *stored) reply {
	options := Object{}
	if len(q.body) > 0 {
		var err error
		if options, err = q.decode(); err != nil {
			return failure(http.StatusBadRequest, "BadRequest", err.Error())
		}
	}
	if a, differs := conflict(q, old, options["preconditions"]); differs {
		return a
	}
	return reply{code: http.StatusOK, json: s.remove(kept, old).json}
}

// conflict compares uid and resource version with the requested ones.
func conflict(q *Request, old *stored, want any) (reply, bool) {
	m, _ := want.(Object)
	for _, field := range []string{"uid", "resourceVersion"} {
		if v, _ := m[field].(string); v != "" && (old == nil || v != meta(old.Object)[field]) {
			return failure(http.StatusConflict, "Conflict", fmt.Sprintf("%s %q: the object has been modified", q.Resource.Name, q.Name)), true
		}
	}
	return reply{}, false
}

func (s *Server) updated(q *Request, kept string, old *stored) reply {
	n, a, ok := q.changed(old)
	if !ok {
		return a
	}
	if a, differs := conflict(q, old, n["metadata"]); differs {
		return a
	}
	if old == nil {
		n["apiVersion"], n["kind"] = strings.TrimPrefix(q.Resource.Group+"/"+q.Resource.Version, "/"), q.Resource.Kind
		meta(n)["name"] = q.Name
		if q.Namespace != "" {
			meta(n)["namespace"] = q.Namespace
		}
		return reply{code: http.StatusCreated, json: s.create(kept, n).json}
	}
	switch {
	case q.Subresource == "status" || q.Subresource == "approval":
		only := clone(old.Object)
		only["status"] = n["status"]
		n = only
	case q.Subresource == "finalize":
	case hasStatus[q.Resource.Name]:
		n["status"] = old.Object["status"]
		if n["status"] == nil {
			delete(n, "status")
		}
	}
	for _, field := range []string{"uid", "creationTimestamp", "deletionTimestamp", "generation"} {
		if v := meta(old.Object)[field]; v != nil {
			meta(n)[field] = v
		} else {
			delete(meta(n), field)
		}
	}
	n["apiVersion"], n["kind"] = old.Object["apiVersion"], old.Object["kind"]
	return reply{code: http.StatusOK, json: s.store(kept, old, n).json}
}

// changed returns the object after a request.
func (q *Request) changed(old *stored) (n Object, a reply, ok bool) {
	n = Object{}
	if old != nil {
		n = clone(old.Object)
	}
	change, err := q.decode()
	switch {
	case err != nil:
		return nil, failure(http.StatusBadRequest, "BadRequest", err.Error()), false
	case q.Verb == "update":
		return change, reply{}, true
	}
	switch kind, _, _ := strings.Cut(q.contentType, ";"); kind {
	case "application/merge-patch+json":
		merge(n, change, false)
	case "application/apply-patch+yaml":
		merge(n, change, true)
	case "application/strategic-merge-patch+json":
		if n, err = q.strategic(old); err != nil {
			return nil, failure(http.StatusBadRequest, "BadRequest", err.Error()), false
		}
	default:
		return nil, failure(http.StatusUnsupportedMediaType, "UnsupportedMediaType", "no such patch: "+kind), false
	}
	return n, reply{}, true
}

func (q *Request) strategic(old *stored) (Object, error) {
	like, err := scheme.Scheme.New(scheme.Scheme.PrioritizedVersionsForGroup(q.Resource.Group)[0].WithKind(q.Resource.Kind))
	if err != nil {
		return nil, err
	}
	b, err := strategicpatch.StrategicMergePatch(old.json, q.body, like)
	if err != nil {
		return nil, err
	}
	n := Object{}
	return n, json.Unmarshal(b, &n)
}

// merge applies a JSON merge patch. With byKey it merges lists of objects by their types, keys or names, as far
// as an apply needs it.
func merge(o, patch Object, byKey bool) {
	for k, v := range patch {
		inner, isObject := v.(Object)
		target, hasObject := o[k].(Object)
		list, isList := v.([]any)
		had, hasList := o[k].([]any)
		switch {
		case v == nil:
			delete(o, k)
		case isObject && hasObject:
			merge(target, inner, byKey)
		case byKey && isList && hasList:
			o[k] = mergeLists(had, list)
		default:
			o[k] = v
		}
	}
}

func mergeLists(had, list []any) []any {
	had = slices.Clone(had)
	for _, v := range list {
		o, _ := v.(Object)
		i := slices.IndexFunc(had, func(h any) bool {
			was, ok := h.(Object)
			for _, k := range []string{"type", "key", "name"} {
				if ok && o[k] != nil {
					return was[k] == o[k]
				}
			}
			return h == v
		})
		if i < 0 {
			had = append(had, v)
		} else {
			had[i] = v
		}
	}
	return had
}

// discover answers discovery requests.
func (s *Server) discover(q *Request) reply {
	parts := strings.Split(strings.Trim(q.path, "/"), "/")
	switch {
	case q.path == "/version":
		return done(http.StatusOK, Object{"major": "1", "minor": "36", "gitVersion": "v1.36.0"})
	case q.path == "/openid/v1/jwks":
		return done(http.StatusOK, s.tokens.keys())
	case q.path == "/.well-known/openid-configuration":
		return done(http.StatusOK, Object{"issuer": Issuer, "jwks_uri": Issuer + "/openid/v1/jwks"})
	case q.path == "/api":
		return done(http.StatusOK, Object{"kind": "APIVersions", "versions": []string{"v1"}})
	case q.path == "/apis":
		return done(http.StatusOK, Object{"kind": "APIGroupList", "apiVersion": "v1", "groups": s.groups()})
	case parts[0] == "api" && len(parts) == 2:
		return s.resourcesOf("", parts[1])
	case parts[0] == "apis" && len(parts) == 3:
		return s.resourcesOf(parts[1], parts[2])
	}
	return failure(http.StatusNotFound, "NotFound", "the server could not find the requested resource")
}

func (s *Server) groups() []any {
	byName := map[string][]any{}
	var names []string
	for _, r := range Resources {
		if _, ok := s.served[r.Group+"/"+r.Version+"/"+r.Name]; !ok || r.Group == "" {
			continue
		}
		v := Object{"groupVersion": r.Group + "/" + r.Version, "version": r.Version}
		if byName[r.Group] == nil {
			names = append(names, r.Group)
		}
		if !slices.ContainsFunc(byName[r.Group], func(o any) bool { return o.(Object)["version"] == r.Version }) {
			byName[r.Group] = append(byName[r.Group], v)
		}
	}
	var all []any
	for _, name := range names {
		all = append(all, Object{"name": name, "versions": byName[name], "preferredVersion": byName[name][0]})
	}
	return all
}

func (s *Server) resourcesOf(group, version string) reply {
	var all []any
	for _, r := range Resources {
		if _, ok := s.served[r.Group+"/"+r.Version+"/"+r.Name]; !ok || r.Group != group || r.Version != version {
			continue
		}
		all = append(all, Object{
			"name": r.Name, "singularName": strings.ToLower(r.Kind), "kind": r.Kind, "namespaced": r.Namespaced,
			"verbs": []string{"create", "delete", "get", "list", "patch", "update", "watch"},
		})
		if hasStatus[r.Name] {
			all = append(all, Object{"name": r.Name + "/status", "kind": r.Kind, "namespaced": r.Namespaced, "verbs": []string{"get", "patch", "update"}})
		}
	}
	if all == nil {
		return failure(http.StatusNotFound, "NotFound", "the server could not find the requested resource")
	}
	return done(http.StatusOK, Object{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": strings.TrimPrefix(group+"/"+version, "/"), "resources": all})
}
