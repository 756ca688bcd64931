package architecture

import (
	"fmt"
	"go/ast"
	"regexp"
	"strings"
	"testing"
)

// unused are ambiguous words that names of declarations must not contain. docs/glossary.md has the words to use
// instead.
var unused = regexp.MustCompile(`(?i)settle|ledger|lasting|blind|outrun|worse|^round$|^rounds$|^again$|^stands$`)

// TestWords_NamesFollowTheGlossary: no function, type, method or field of the product uses one of the ambiguous
// words.
func TestWords_NamesFollowTheGlossary(t *testing.T) {
	violations, seen := checkWords(product(t))
	report(t, violations)
	if seen < 1000 {
		t.Errorf("looked at %d names only", seen)
	}
	for _, text := range []string{"func settleAll() {}", "type Ledger int", "var again bool", "type T struct{ round int }", "func (t T) Blind() {}"} {
		violations, _ := checkWords([]source{mustParse(t, "pkg/a/a.go", "package a\n"+text)})
		wantViolation(t, violations, "glossary")
	}
}

// checkWords returns the declarations whose names contain an unused word. seen is the number of checked names.
func checkWords(files []source) (violations []string, seen int) {
	for _, f := range files {
		top, _, _ := strings.Cut(f.path, "/")
		if top != "cmd" && top != "internal" && top != "pkg" || strings.HasSuffix(f.path, "_test.go") {
			continue
		}
		for _, name := range declared(f.ast) {
			seen++
			if word := unused.FindString(name.Name); word != "" {
				violations = append(violations, fmt.Sprintf("%s: %s: choose a word of docs/glossary.md in place of %q",
					f.fset.Position(name.Pos()), name.Name, word))
			}
		}
	}
	return violations, seen
}

// declared returns the declared names of a file: functions, methods, types, fields, and package variables and
// constants.
func declared(file *ast.File) (names []*ast.Ident) {
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			names = append(names, d.Name)
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					names = append(names, s.Name)
				case *ast.ValueSpec:
					names = append(names, s.Names...)
				}
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if st, ok := n.(*ast.StructType); ok {
			for _, f := range st.Fields.List {
				names = append(names, f.Names...)
			}
		}
		return true
	})
	return names
}
