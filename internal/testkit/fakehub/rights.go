package fakehub

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Attributes are the input of an RBAC decision.
type Attributes struct {
	User                                                string
	Groups                                              []string
	Verb, Group, Resource, Subresource, Namespace, Name string
}

// admins is the group that may do everything.
const admins = "system:masters"

// identify sets the user of a request: the user of the token, or the impersonated one.
func (s *Server) identify(r *http.Request, q *Request) {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	q.User, q.Groups = token, []string{"system:authenticated"}
	if c, err := s.tokens.verify(token, s.now(), nil); err == nil {
		q.User, q.Groups = c.user(), c.groups()
	}
	if q.User == "admin" || r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && q.User == "" {
		q.User, q.Groups = "admin", []string{admins, "system:authenticated"}
	}
	as := r.Header.Get("Impersonate-User")
	if as == "" {
		return
	}
	q.User, q.Groups = as, append(slices.Clone(r.Header.Values("Impersonate-Group")), "system:authenticated")
	if rest, ok := strings.CutPrefix(as, "system:serviceaccount:"); ok && len(r.Header.Values("Impersonate-Group")) == 0 {
		namespace, _, _ := strings.Cut(rest, ":")
		q.Groups = []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}
	}
}

// authorized reports whether the user may make the request; the caller holds the lock. Only user names with a
// colon are checked, because test components use names without one.
func (s *Server) authorized(q *Request) bool {
	if q.User != "" && !strings.Contains(q.User, ":") {
		return true
	}
	return s.may(Attributes{
		User: q.User, Groups: q.Groups, Verb: q.Verb, Group: q.Resource.Group, Resource: q.Resource.Name,
		Subresource: q.Subresource, Namespace: q.Namespace, Name: q.Name,
	})
}

// May returns the decision of RBAC.
func (s *Server) May(a Attributes) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.may(a)
}

func (s *Server) may(a Attributes) bool {
	if slices.Contains(a.Groups, admins) {
		return true
	}
	const group = "rbac.authorization.k8s.io"
	for _, b := range s.objects["clusterrolebindings."+group] {
		if binds(b.Object, a) && s.grants(b.Object, "", a) {
			return true
		}
	}
	for _, b := range s.objects["rolebindings."+group] {
		namespace, _ := meta(b.Object)["namespace"].(string)
		if a.Namespace != "" && namespace == a.Namespace && binds(b.Object, a) && s.grants(b.Object, namespace, a) {
			return true
		}
	}
	return false
}

// binds reports whether a binding applies to the user.
func binds(b Object, a Attributes) bool {
	subjects, _ := b["subjects"].([]any)
	return slices.ContainsFunc(subjects, func(v any) bool {
		o, _ := v.(Object)
		name, _ := o["name"].(string)
		switch o["kind"] {
		case "User":
			return name == a.User
		case "Group":
			return slices.Contains(a.Groups, name)
		case "ServiceAccount":
			return a.User == fmt.Sprintf("system:serviceaccount:%v:%s", o["namespace"], name)
		}
		return false
	})
}

// grants reports whether the role of a binding allows the request.
func (s *Server) grants(b Object, namespace string, a Attributes) bool {
	const group = "rbac.authorization.k8s.io"
	ref, _ := b["roleRef"].(Object)
	at := "clusterroles." + group
	k := "/" + fmt.Sprint(ref["name"])
	if ref["kind"] == "Role" {
		at, k = "roles."+group, namespace+k
	}
	role := s.objects[at][k]
	if role == nil {
		return false
	}
	rules, _ := role.Object["rules"].([]any)
	what := a.Resource
	if a.Subresource != "" {
		what += "/" + a.Subresource
	}
	return slices.ContainsFunc(rules, func(v any) bool {
		rule, _ := v.(Object)
		names := strs(rule["resourceNames"])
		return has(rule["verbs"], a.Verb) && has(rule["apiGroups"], a.Group) && has(rule["resources"], what) &&
			(len(names) == 0 || slices.Contains(names, a.Name))
	})
}

func has(list any, what string) bool {
	all := strs(list)
	return slices.Contains(all, what) || slices.Contains(all, "*")
}

func strs(list any) (all []string) {
	l, _ := list.([]any)
	for _, v := range l {
		text, _ := v.(string)
		all = append(all, text)
	}
	return all
}
