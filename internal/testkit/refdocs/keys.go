package refdocs

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/spf13/pflag"
)

// row is one key of a configuration file.
type row struct {
	key, kind, value, text string
	// flag is the flag that sets the same value.
	flag *pflag.Flag
}

// rows returns the keys of the struct that into points to.
func (w *page) rows(into any) []row {
	v := reflect.ValueOf(into).Elem()
	return w.group("", v, w.source.of(v.Type()))
}

// group returns the keys of a struct at a path of the file. spec has the comments of the fields.
func (w *page) group(place string, v reflect.Value, spec *ast.StructType) (all []row) {
	if spec == nil {
		w.fail("%s: no source of %s", place, v.Type())
		return nil
	}
	comments := fields(spec)
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			all = append(all, w.group(place, v.Field(i), w.source.of(f.Type))...)
		case name != "" && name != "-" && f.IsExported():
			all = append(all, w.field(place+name, f.Name, v.Field(i), comments[f.Name])...)
		}
	}
	return all
}

// field returns the keys of one field: the field's key, or the nested ones.
func (w *page) field(key, name string, v reflect.Value, comment *ast.Field) []row {
	t := v.Type()
	whole := reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) || t == reflect.TypeFor[json.RawMessage]()
	if flag := w.flags[v.Addr().Pointer()]; flag != nil && (whole || t.Kind() != reflect.Struct) {
		w.keys[flag.Name] = key
		return []row{{key: key, flag: flag}}
	}
	if whole {
		return w.leaf(key, name, v, comment)
	}
	switch inner := reflect.New(element(t)).Elem(); {
	case t.Kind() == reflect.Struct:
		spec, ok := comment.Type.(*ast.StructType) // a type without a name is described in its field
		if !ok {
			spec = w.source.of(t)
		}
		return w.group(key+".", v, spec)
	case t.Kind() == reflect.Slice && inner.Kind() == reflect.Struct:
		return append(about(key, "list", name, comment), w.group(key+"[].", inner, w.source.of(inner.Type()))...)
	case t.Kind() == reflect.Map && inner.Kind() == reflect.Struct:
		return append(about(key, "map", name, comment), w.group(key+".NAME.", inner, w.source.of(inner.Type()))...)
	}
	return w.leaf(key, name, v, comment)
}

func element(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		return t.Elem()
	}
	return t
}

// about returns the row of a list or map with nested keys.
func about(key, kind, name string, comment *ast.Field) []row {
	return []row{{key: key, kind: kind, text: textOf(name, comment)}}
}

// textOf returns the comment of a field, without the leading field name.
func textOf(name string, comment *ast.Field) string {
	text := comment.Doc.Text()
	for _, verb := range []string{" is ", " are ", " says ", " say "} {
		text = strings.TrimPrefix(text, name+verb)
	}
	return strings.TrimSuffix(strings.TrimSpace(text), ".")
}

func (w *page) leaf(key, name string, v reflect.Value, comment *ast.Field) []row {
	r := row{key: key, kind: kindOf(v.Type()), text: textOf(name, comment)}
	if r.text == "" {
		w.fail("%s: say in a comment of the field %s what it is", key, name)
	}
	if !v.IsZero() {
		r.value = fmt.Sprint(v.Interface())
		if s, ok := v.Addr().Interface().(fmt.Stringer); ok { // a duration in the form of the file
			r.value = s.String()
		}
	}
	return []row{r}
}

// kindOf returns the type of a value in YAML terms.
func kindOf(t reflect.Type) string {
	switch {
	case t.Kind() == reflect.Pointer:
		return kindOf(t.Elem())
	case t == reflect.TypeFor[json.RawMessage]():
		return "any"
	case t.Name() == "Duration":
		return "duration"
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		return "base64"
	case t.Kind() == reflect.Slice:
		return "list of " + kindOf(t.Elem()) + "s"
	case t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64:
		return "int"
	}
	return t.Kind().String()
}

func (w *page) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

// source finds the source text of types, for the comments of their fields.
type source struct {
	root  string
	types map[string]map[string]*ast.StructType
}

// module is the path of this module.
const module = "github.com/hawser-io/hawser/"

// of returns the struct of a type, nil for a type of another module.
func (s *source) of(t reflect.Type) *ast.StructType {
	dir := "." // a program, in its own test
	if p := t.PkgPath(); p != "main" {
		inside, ours := strings.CutPrefix(p, module)
		if !ours {
			return nil
		}
		dir = filepath.Join(s.root, inside)
	}
	if s.types == nil {
		s.types = map[string]map[string]*ast.StructType{}
	}
	if s.types[dir] == nil {
		s.types[dir] = structs(dir)
	}
	return s.types[dir][t.Name()]
}

// structs returns the structs in a directory, by name. Unreadable files are skipped.
func structs(dir string) map[string]*ast.StructType {
	all := map[string]*ast.StructType{}
	files, _ := filepath.Glob(filepath.Join(dir, "*.go")) // the pattern is valid
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if s, ok := spec.Type.(*ast.StructType); ok {
					all[spec.Name.Name] = s
				}
			}
			return true
		})
	}
	return all
}

// fields returns the fields of a struct, by name.
func fields(s *ast.StructType) map[string]*ast.Field {
	all := map[string]*ast.Field{}
	for _, f := range s.Fields.List {
		for _, name := range f.Names {
			all[name.Name] = f
		}
	}
	return all
}
