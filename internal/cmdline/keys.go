package cmdline

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// UnknownKeys returns the keys of a YAML or JSON file that are unknown to the struct that into points to,
// sorted. Nested keys have the path, as "topics.spec". It is for files of Open Cluster Management, which
// ignores unknown keys, so that one file can serve both. Hawser's own files are read by [Load].
func UnknownKeys(file []byte, into any) (unknown []string, err error) {
	text, err := yaml.YAMLToJSON(file)
	if err != nil {
		return nil, err
	}
	unknown, err = unknownKeys("", text, reflect.TypeOf(into).Elem())
	slices.Sort(unknown)
	return unknown, err
}

// unknownKeys is UnknownKeys for a struct at a path in the file.
func unknownKeys(place string, object []byte, of reflect.Type) (unknown []string, err error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(object, &keys); err != nil {
		if place == "" {
			return nil, err
		}
		return nil, fmt.Errorf("%s: %w", strings.TrimSuffix(place, "."), err)
	}
	known := knownKeys(of)
	for k, value := range keys {
		switch t := known[k]; {
		case t == nil:
			unknown = append(unknown, place+k)
		case t.Kind() == reflect.Struct:
			inner, err := unknownKeys(place+k+".", value, t)
			if err != nil {
				return nil, err
			}
			unknown = append(unknown, inner...)
		}
	}
	return unknown, nil
}

// knownKeys returns the field types of a struct by key, including embedded structs.
func knownKeys(of reflect.Type) map[string]reflect.Type {
	known := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(of) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			known[name] = f.Type
		}
	}
	return known
}
