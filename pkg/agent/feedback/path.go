package feedback

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"k8s.io/client-go/util/jsonpath"
	workv1 "open-cluster-management.io/api/work/v1"
)

// maxPath bounds the length of a path, in bytes; the parser is recursive.
const maxPath = 4 << 10

// maxString bounds the length of a text value, in bytes. The API has no limit, but the whole work must fit into
// the hub's store.
const maxString = 64 << 10

// path is a parsed path. It is used once: the evaluation modifies it.
type path struct {
	template *jsonpath.JSONPath
	root     *jsonpath.ListNode
}

// parse parses a path. The library may panic on hostile input; a panic counts as an error of the path.
func parse(p workv1.JsonPath) (parsed path, err error) {
	if len(p.Path) > maxPath {
		return path{}, fmt.Errorf("it has %d bytes, use at most %d", len(p.Path), maxPath)
	}
	defer recovered(&err)
	text := "{" + p.Path + "}"
	parsed.template = jsonpath.New(p.Name).AllowMissingKeys(true)
	if err := parsed.template.Parse(text); err != nil {
		return path{}, err
	}
	tree, err := jsonpath.Parse(p.Name, text)
	if err != nil {
		return path{}, err
	}
	parsed.root = tree.Root
	return parsed, nil
}

func find(p path, object map[string]any) (results [][]reflect.Value, err error) {
	defer recovered(&err)
	if results, err = p.template.FindResults(object); err != nil {
		return nil, shortened(err)
	}
	return results, nil
}

// maxError exceeds the readable length of an error; the library prints whole values in some errors.
const maxError = 1 << 10

func shortened(err error) error {
	if text := err.Error(); len(text) > maxError {
		return errors.New(strings.ToValidUTF8(text[:maxError], "") + "…")
	}
	return err
}

// recovered converts a panic of the library to an error.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("the path cannot be evaluated: %v", p)
	}
}

// values returns the values behind reflection; nil for invalid ones.
func values(values ...reflect.Value) []any {
	list := make([]any, 0, len(values))
	for _, v := range values {
		var o any
		if v.IsValid() && v.CanInterface() {
			o = v.Interface()
		}
		list = append(list, o)
	}
	return list
}

// field returns a value with its type.
func (r Reader) field(name string, v any) (*workv1.FieldValue, error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case int64:
		return &workv1.FieldValue{Type: workv1.Integer, Integer: &v}, nil
	case int: // from a literal in the path
		i := int64(v)
		return &workv1.FieldValue{Type: workv1.Integer, Integer: &i}, nil
	case string:
		if len(v) > maxString {
			return nil, fmt.Errorf("the length of the string for name %s is larger than the maximum length %d", name, maxString)
		}
		return &workv1.FieldValue{Type: workv1.String, String: &v}, nil
	case bool:
		return &workv1.FieldValue{Type: workv1.Boolean, Boolean: &v}, nil
	}
	if !r.Raw {
		return nil, fmt.Errorf("the type %T of the value for %s is not found", v, name)
	}
	return r.raw(name, v)
}

// raw returns a value as JSON text.
func (r Reader) raw(name string, v any) (*workv1.FieldValue, error) {
	limit := MaxRawLength
	if r.RawLength > 0 {
		limit = min(limit, r.RawLength)
	}
	tooLong := fmt.Errorf("the length of returned json raw string for name %s is larger than the maximum length %d", name, limit)
	if shortest(v, limit) > limit {
		return nil, tooLong
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("failed to parse the result %v of %s with error: %w", v, name, err)
	}
	if len(b) > limit {
		return nil, tooLong
	}
	text := string(b)
	return &workv1.FieldValue{Type: workv1.JsonRaw, JsonRaw: &text}, nil
}

// shortest returns the minimum length of a value as JSON, in bytes. Above limit it is inexact.
func shortest(v any, limit int) int {
	n := 1
	switch v := v.(type) {
	case string:
		n += len(v)
	case map[string]any:
		for k, e := range v {
			if n > limit {
				break
			}
			n += len(k) + 3 + shortest(e, limit-n)
		}
	case []any:
		for _, e := range v {
			if n > limit {
				break
			}
			n += 1 + shortest(e, limit-n)
		}
	}
	return n
}
