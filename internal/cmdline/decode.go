package cmdline

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// Decode decodes YAML, or JSON, into the value that into points to. An unknown or duplicate field is an error.
// Errors contain the line and the field; for an unknown field they list the known ones.
func Decode(text []byte, into any) error {
	return explained(text, into, yaml.UnmarshalStrict(text, into), true)
}

// DecodeLenient is Decode for third-party files, whose unknown fields are ignored.
func DecodeLenient(text []byte, into any) error {
	return explained(text, into, yaml.Unmarshal(text, into), false)
}

// syntax extracts the line from an error of the YAML library.
var syntax = regexp.MustCompile(`yaml: (line \d+: .*)`)

// explained adds the position in the text to a decoding error.
func explained(text []byte, into any, err error, strict bool) error {
	if err == nil {
		return nil
	}
	var doc yamlv3.Node
	if yamlv3.Unmarshal(text, &doc) != nil || len(doc.Content) == 0 {
		if m := syntax.FindStringSubmatch(err.Error()); m != nil {
			return errors.New(m[1])
		}
		return withoutPrefix(err)
	}
	w := explanation{strict: strict}
	w.look("", doc.Content[0], reflect.ValueOf(into).Elem())
	if len(w.errs) == 0 {
		return withoutPrefix(err)
	}
	return errors.Join(w.errs...)
}

// explanation collects the errors of a file.
type explanation struct {
	strict bool
	errs   []error
}

func (w *explanation) wrong(n *yamlv3.Node, place, format string, args ...any) {
	where := fmt.Sprintf("line %d: ", n.Line)
	if place != "" {
		where += place + ": "
	}
	w.errs = append(w.errs, errors.New(where+fmt.Sprintf(format, args...)))
}

// look compares a node of the file, at path place, with the type that it is decoded into.
func (w *explanation) look(place string, n *yamlv3.Node, into reflect.Value) {
	if n.Kind == yamlv3.AliasNode {
		n = n.Alias
	}
	switch {
	case unmarshalsItself(into) || n.Tag == "!!null":
		w.leaf(place, n, into)
	case into.Kind() == reflect.Pointer:
		if into.IsNil() {
			into.Set(reflect.New(into.Type().Elem()))
		}
		w.look(place, n, into.Elem())
	case into.Kind() == reflect.Struct:
		w.fields(place, n, into)
	case into.Kind() == reflect.Slice && n.Kind == yamlv3.SequenceNode:
		for i, item := range n.Content {
			w.look(fmt.Sprintf("%s[%d]", place, i), item, reflect.New(into.Type().Elem()).Elem())
		}
	case into.Kind() == reflect.Map && n.Kind == yamlv3.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			w.look(below(place, n.Content[i].Value), n.Content[i+1], reflect.New(into.Type().Elem()).Elem())
		}
	default:
		w.leaf(place, n, into)
	}
}

// fields compares the fields of a struct.
func (w *explanation) fields(place string, n *yamlv3.Node, into reflect.Value) {
	known := map[string]reflect.StructField{}
	for _, f := range reflect.VisibleFields(into.Type()) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" && f.IsExported() {
			known[name] = f
		}
	}
	there := strings.Join(slices.Sorted(maps.Keys(known)), ", ")
	if n.Kind != yamlv3.MappingNode {
		w.wrong(n, place, "write fields here; the known ones are %s", there)
		return
	}
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		f, ok := known[key.Value]
		switch {
		case lines[key.Value] != 0:
			w.wrong(key, below(place, key.Value), "is on line %d already", lines[key.Value])
		case ok:
			w.look(below(place, key.Value), value, into.FieldByIndex(f.Index))
		case w.strict:
			w.wrong(key, below(place, key.Value), "unknown field; the known ones are %s", there)
		}
		lines[key.Value] = key.Line
	}
}

// leaf decodes one value.
func (w *explanation) leaf(place string, n *yamlv3.Node, into reflect.Value) {
	text, err := yamlv3.Marshal(n)
	if err == nil {
		err = yaml.Unmarshal(text, into.Addr().Interface())
	}
	var kind *json.UnmarshalTypeError
	switch {
	case err == nil:
	case errors.As(err, &kind) && !unmarshalsItself(into): // the text of the library's error may contain the value
		w.wrong(n, place, "is %s, and has to be %s", jsonKind(kind.Value), goKind(kind.Type))
	default:
		w.wrong(n, place, "%v", withoutPrefix(err))
	}
}

func unmarshalsItself(v reflect.Value) bool {
	_, ok := v.Addr().Interface().(json.Unmarshaler)
	return ok
}

func below(place, name string) string {
	if place == "" {
		return name
	}
	return place + "." + name
}

// withoutPrefix returns an error without the prefix of the libraries.
func withoutPrefix(err error) error {
	text := err.Error()
	for _, before := range []string{"error converting YAML to JSON: ", "error unmarshaling JSON: ", "while decoding JSON: ", "yaml: "} {
		text = strings.TrimPrefix(text, before)
	}
	return errors.New(text)
}

// jsonKind returns the kind of the found value; the library may append the value itself.
func jsonKind(value string) string {
	word, rest, _ := strings.Cut(value, " ")
	kind := map[string]string{"string": "a text", "number": "a number", "bool": "true or false", "array": "a list", "object": "a group of fields"}[word]
	if rest != "" {
		return rest
	}
	return kind
}

func goKind(t reflect.Type) string {
	switch k := t.Kind(); {
	case k == reflect.String:
		return "a text"
	case k == reflect.Bool:
		return "true or false"
	case k >= reflect.Uint && k <= reflect.Uint64:
		return "a whole number, not negative"
	case k >= reflect.Int && k <= reflect.Int64:
		return "a whole number"
	case k == reflect.Slice:
		return "a list"
	case k == reflect.Map || k == reflect.Struct:
		return "a group of fields"
	}
	return "a " + t.String()
}
