package feedback

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"
)

// MaxRawLength is the API limit of raw JSON, in bytes.
const MaxRawLength = 1024

// Reader reads values. Its methods may be called concurrently.
type Reader struct {
	// Raw returns non-integer numbers, maps, lists and several results of one path as raw JSON. Without it they are
	// errors, and the first of several results is used.
	Raw bool
	// RawLength bounds raw JSON, in bytes. 0 or more than MaxRawLength means MaxRawLength.
	RawLength int
}

// Read evaluates the rules on an object, in order. Values are in the order of the rules, each name once; errs
// has the reasons for missing ones. A field that the object does not have gives neither a value nor an error.
// obj is not modified.
func (r Reader) Read(obj *unstructured.Unstructured, rules []workv1.FeedbackRule) (values []workv1.FeedbackValue, errs []error) {
	limit := newBudget(obj.Object)
	named := map[string]bool{}
	for _, rule := range rules {
		paths := rule.JsonPaths
		switch rule.Type {
		case workv1.WellKnownStatusType:
			known, ok := wellKnown[obj.GroupVersionKind()]
			if !ok {
				errs = append(errs, fmt.Errorf("cannot find the wellknown statuses for resource with gvk %s", obj.GroupVersionKind()))
				continue
			}
			paths = known
		case workv1.JSONPathsType:
		default:
			errs = append(errs, fmt.Errorf("feedback rule type %q is not known: use %s or %s", rule.Type, workv1.WellKnownStatusType, workv1.JSONPathsType))
			continue
		}
		for _, p := range paths {
			value, err := r.value(obj, p, limit)
			switch {
			case err != nil:
				errs = append(errs, err)
			case value == nil:
			case named[p.Name]:
				errs = append(errs, fmt.Errorf("the name %s is given to more than one value: only the first is reported, use another name for %s", p.Name, p.Path))
			default:
				named[p.Name] = true
				values = append(values, workv1.FeedbackValue{Name: p.Name, Value: *value})
			}
		}
	}
	return values, errs
}

// value evaluates one path; nil means no value.
func (r Reader) value(obj *unstructured.Unstructured, p workv1.JsonPath, limit *visitBudget) (*workv1.FieldValue, error) {
	if p.Version != "" && p.Version != obj.GroupVersionKind().Version {
		return nil, fmt.Errorf("version set in the path %s is not matched for the related resource", p.Name)
	}
	path, err := parse(p)
	if err != nil {
		return nil, fmt.Errorf("failed to parse json path %s of %s with error: %w", p.Path, p.Name, err)
	}
	if err := limit.allows(path); err != nil {
		return nil, fmt.Errorf("failed to find value for %s with error: %w", p.Name, err)
	}
	results, err := find(path, obj.Object)
	if err != nil {
		return nil, fmt.Errorf("failed to find value for %s with error: %w", p.Name, err)
	}
	if len(results) == 0 || len(results[0]) == 0 {
		return nil, nil
	}
	first := results[0]
	if r.Raw && (len(results) > 1 || len(first) > 1) {
		return r.raw(p.Name, values(first...))
	}
	return r.field(p.Name, values(first[0])[0])
}
