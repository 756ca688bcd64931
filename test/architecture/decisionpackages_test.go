package architecture

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"go/types"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
)

// cores lists the packages that decide. One person must be able to understand each, so the limits below apply to
// them. whole is the main type of the package, "" without one. No part of the package may refer to it.
var cores = []struct{ dir, whole string }{
	{"internal/fair", ""},
	{"internal/hubsource", ""},
	{"internal/hubsource/core", "Core"},
	{"internal/broker", "Broker"},
	{"internal/broker/admin", "Admin"},
	{"internal/broker/syncstate", "State"},
	{"internal/broker/delivery", "Feed"},
	{"internal/broker/ingest", "Intake"},
	{"internal/broker/deliveryqueue", ""},
	{"internal/broker/store", ""},
	{"internal/broker/store/pebble", "Store"},
	{"internal/broker/store/mem", "Store"},
	{"internal/broker/store/memindex", ""},
	{"pkg/agent", "Core"},
	{"pkg/agent/journal", "Journal"},
	{"pkg/session", ""},
}

// shells are the types that run a whole package and decide nothing.
var shells = map[string]string{"pkg/agent": "Agent"}

const (
	// maxMethods is the limit of methods of one receiver, including the methods of embedded types.
	maxMethods = 60
	// maxFunction is the limit of lines for 99 % of the functions.
	maxFunction = 50
)

func TestDecisionPackages_StaySmall(t *testing.T) {
	files := product(t)
	for _, c := range cores {
		report(t, checkCore(files, c.dir, c.whole))
	}
	const dir = "internal/hubsource/core"
	bad := func(why string, files ...string) {
		var sources []source
		for i, text := range files {
			sources = append(sources, mustParse(t, fmt.Sprintf("%s/%c.go", dir, 'a'+i), "package core\n"+text))
		}
		wantViolation(t, checkCore(sources, dir, "Core"), why)
	}
	var many, inner strings.Builder
	for i := range maxMethods {
		fmt.Fprintf(&many, "func (t *T) M%d() {}\n", i)
		fmt.Fprintf(&inner, "func (t inner) N%d() {}\n", i)
	}
	bad("methods", "type T struct{}\n"+many.String()+"func (t T) More() {}")
	bad("methods", "type T struct{ inner }\ntype inner struct{}\nfunc (t *T) More() {}\n"+inner.String())
	bad("the whole", "type Core struct{}\ntype part struct{ c *Core }")
	bad("is assigned in", "type T struct{ n int }\nfunc f(t *T) { t.n = 1 }", "func g(all map[string]*T) { for _, t := range all { t.n++ } }")
	bad("lines", "func f() {"+strings.Repeat("\n", maxFunction+1)+"}")
}

func checkCore(files []source, dir, whole string) []string {
	var mine []source
	for _, s := range files {
		if s.dir() == dir && !s.isTest() {
			mine = append(mine, s)
		}
	}
	return slices.Concat(checkMethods(mine), checkWhole(mine, whole, shells[dir]), checkWriters(mine), checkFunctions(mine))
}

// checkMethods counts the methods of each receiver.
func checkMethods(files []source) (bad []string) {
	methods, embedded := map[string]int{}, map[string][]string{}
	for _, s := range files {
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil {
				methods[typeName(f.Recv.List[0].Type)]++
			}
		}
		structs(s, func(name string, f *ast.Field) {
			if len(f.Names) == 0 {
				embedded[name] = append(embedded[name], typeName(f.Type))
			}
		})
	}
	for name, n := range methods {
		for _, e := range embedded[name] {
			n += methods[e]
		}
		if n > maxMethods {
			bad = append(bad, fmt.Sprintf("%s: %s has %d methods, at most %d are allowed: find out what it is two of", files[0].dir(), name, n, maxMethods))
		}
	}
	return bad
}

// checkWhole finds structs with a field of the main type.
func checkWhole(files []source, whole, shell string) (bad []string) {
	for _, s := range files {
		structs(s, func(name string, f *ast.Field) {
			if whole != "" && name != shell && typeName(f.Type) == whole {
				bad = append(bad, fmt.Sprintf("%s: %s holds a %s, the whole: give it the parts that it needs", s.path, name, whole))
			}
		})
	}
	return bad
}

// checkWriters finds fields that are assigned in more than one file.
func checkWriters(files []source) (bad []string) {
	writers := map[string]map[string]bool{} // files by field
	asts, info := resolve(files)
	for i, s := range files {
		wrote := func(e ast.Expr) {
			sel, ok := e.(*ast.SelectorExpr)
			if !ok {
				return
			}
			if chosen := info.Selections[sel]; chosen != nil && chosen.Kind() == types.FieldVal {
				field := owner(chosen) + "." + sel.Sel.Name
				if writers[field] == nil {
					writers[field] = map[string]bool{}
				}
				writers[field][path.Base(s.path)] = true
			}
		}
		ast.Inspect(asts[i], func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				for _, e := range n.Lhs {
					wrote(e)
				}
			case *ast.IncDecStmt:
				wrote(n.X)
			case *ast.RangeStmt:
				wrote(n.Key)
				wrote(n.Value)
			}
			return true
		})
	}
	for field, in := range writers {
		if len(in) > 1 {
			bad = append(bad, fmt.Sprintf("%s: field %s is assigned in %s: let one file have a method for it",
				files[0].dir(), field, strings.Join(slices.Sorted(maps.Keys(in)), ", ")))
		}
	}
	return bad
}

// checkFunctions checks the lengths of functions.
func checkFunctions(files []source) (bad []string) {
	type function struct {
		name  string
		lines int
	}
	var all []function
	for _, s := range files {
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				lines := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line + 1
				all = append(all, function{s.path + ": " + f.Name.Name, lines})
			}
		}
	}
	slices.SortFunc(all, func(a, b function) int { return b.lines - a.lines })
	for i, f := range all {
		if i >= len(all)/100 && f.lines > maxFunction {
			bad = append(bad, fmt.Sprintf("%s has %d lines: 99 of 100 functions have at most %d", f.name, f.lines, maxFunction))
		}
	}
	return bad
}

// structs calls f for each field of each struct type of a file.
func structs(s source, f func(name string, field *ast.Field)) {
	ast.Inspect(s.ast, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		if t, ok := spec.Type.(*ast.StructType); ok {
			for _, field := range t.Fields.List {
				f(spec.Name.Name, field)
			}
		}
		return true
	})
}

// typeName returns the name of a type in the same package, or of the type that it points to. Other types give
// "".
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	}
	return ""
}

// resolve determines the types of the selectors in a package, as far as its own files define them. The returned
// files are copies with common positions.
func resolve(files []source) ([]*ast.File, *types.Info) {
	info := &types.Info{Selections: map[*ast.SelectorExpr]*types.Selection{}}
	fset := token.NewFileSet()
	var asts []*ast.File
	for _, s := range files {
		var text bytes.Buffer
		if err := printer.Fprint(&text, s.fset, s.ast); err != nil {
			panic(err) // the file was parsed before
		}
		f, err := parser.ParseFile(fset, s.path, text.Bytes(), parser.SkipObjectResolution)
		if err != nil {
			panic(err)
		}
		asts = append(asts, f)
	}
	c := types.Config{Error: func(error) {}, Importer: nothing{}}
	_, _ = c.Check("core", fset, asts, info) // imported packages are empty, so errors are expected
	return asts, info
}

// nothing is an importer that returns empty packages.
type nothing struct{}

func (nothing) Import(name string) (*types.Package, error) {
	p := types.NewPackage(name, path.Base(name))
	p.MarkComplete()
	return p, nil
}

// owner returns the name of the struct that a field belongs to.
func owner(s *types.Selection) string {
	t := s.Recv()
	for {
		if p, ok := t.(*types.Pointer); ok {
			t = p.Elem()
			continue
		}
		break
	}
	if n, ok := t.(*types.Named); ok {
		return n.Obj().Name()
	}
	return t.String()
}
