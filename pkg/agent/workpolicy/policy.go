package workpolicy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	workv1 "open-cluster-management.io/api/work/v1"
	"sigs.k8s.io/yaml"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// Policy has the rules of a cluster's owner for the works of hubs.
type Policy struct {
	// Hubs has the rules of each hub, by its identity. Those of "*" apply to all other hubs.
	Hubs map[string]Rules `json:"hubs"`
}

// AnyHub is the key for hubs that a Policy does not name.
const AnyHub = "*"

// Rules define which objects works of a hub may have. The zero value allows everything except objects that
// agents need, which no rule allows.
type Rules struct {
	// Allow lists the allowed objects; if it is absent, all are allowed.
	Allow []Rule `json:"allow,omitempty"`
	// Deny lists the forbidden objects. It has priority over Allow.
	Deny []Rule `json:"deny,omitempty"`
}

// Rule matches the objects that all of its lists match. An absent list matches all.
type Rule struct {
	// APIGroups are names of groups, "" for the core group; "*" matches any.
	APIGroups []string `json:"apiGroups,omitempty"`
	// Resources are plural names of kinds, as in roles; "*" matches any.
	Resources []string `json:"resources,omitempty"`
	// Namespaces are names in which "*" matches any characters. A Namespace counts as being in itself; other
	// cluster-scoped objects are in "".
	Namespaces []string `json:"namespaces,omitempty"`
}

// ParsePolicy parses a policy in YAML. The error names the wrong part.
func ParsePolicy(text []byte) (Policy, error) {
	var p Policy
	if err := cmdline.Decode(text, &p); err != nil {
		return Policy{}, err
	}
	var whole any
	if err := yaml.Unmarshal(text, &whole); err != nil {
		return Policy{}, err
	}
	return p, errors.Join(empty("", whole), p.validate())
}

// empty finds a key without a value or with an empty list. An owner who removes the last entry of a list hardly
// intends to allow everything.
func empty(path string, v any) error {
	var errs []error
	switch v := v.(type) {
	case nil:
		return fmt.Errorf("%s has no value: give it one, or leave it out", cmp.Or(path, "the file"))
	case []any:
		if len(v) == 0 {
			return fmt.Errorf("%s is an empty list: name something, or leave it out", path)
		}
		for i, e := range v {
			errs = append(errs, empty(fmt.Sprintf("%s[%d]", path, i), e))
		}
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			errs = append(errs, empty(strings.TrimPrefix(path+"."+k, "."), v[k]))
		}
	}
	return errors.Join(errs...)
}

func (p Policy) validate() error {
	var errs []error
	for _, hub := range slices.Sorted(maps.Keys(p.Hubs)) {
		check := func(list string, rules []Rule) {
			for i, r := range rules {
				if err := r.validate(); err != nil {
					errs = append(errs, fmt.Errorf("hubs.%s.%s[%d]: %w", hub, list, i, err))
				}
			}
		}
		check("allow", p.Hubs[hub].Allow)
		check("deny", p.Hubs[hub].Deny)
	}
	return errors.Join(errs...)
}

var (
	plural    = regexp.MustCompile(`^[a-z0-9-]+$`)
	namespace = regexp.MustCompile(`^[a-z0-9*-]*$`)
)

func (r Rule) validate() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if r.APIGroups == nil && r.Resources == nil && r.Namespaces == nil {
		wrong(`it names nothing: give it apiGroups, resources or namespaces; resources: ["*"] is about everything`)
	}
	for _, g := range r.APIGroups {
		if g != "" && g != "*" && len(validation.IsDNS1123Subdomain(g)) > 0 {
			wrong(`%q is no API group: use a name as apps, "" for the core, or "*"`, g)
		}
	}
	for _, s := range r.Resources {
		if s != "*" && !plural.MatchString(s) {
			wrong(`%q is no resource: use the plural in lower case, as deployments, or "*"`, s)
		}
	}
	for _, n := range r.Namespaces {
		if !namespace.MatchString(n) {
			wrong(`%q is no namespace: use lower-case letters, digits, '-', and '*' for any characters`, n)
		}
	}
	return errors.Join(errs...)
}

// For returns the rules for a hub. It returns an error if there are none: a misspelled name must not allow
// everything.
func (p Policy) For(hub string) (Rules, error) {
	for _, name := range []string{hub, AnyHub} {
		if r, has := p.Hubs[name]; has {
			return r, nil
		}
	}
	return Rules{}, fmt.Errorf("it has no rules for hub %q: name it under hubs, or %q for every hub that is not named; {} allows everything", hub, AnyHub)
}

func (r Rules) allow(id workv1.ResourceIdentifier) bool {
	about := func(rule Rule) bool { return rule.about(id) }
	return !slices.ContainsFunc(r.Deny, about) && (r.Allow == nil || slices.ContainsFunc(r.Allow, about))
}

func (r Rule) about(id workv1.ResourceIdentifier) bool {
	in := id.Namespace
	if isNamespace(id) {
		in = id.Name
	}
	return lists(r.APIGroups, id.Group) && lists(r.Resources, id.Resource) &&
		(r.Namespaces == nil || slices.ContainsFunc(r.Namespaces, func(pattern string) bool { return kubeclient.Matches(pattern, in) }))
}

func lists(names []string, name string) bool {
	return names == nil || slices.Contains(names, "*") || slices.Contains(names, name)
}
