package shape

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// unused are words with several meanings, or none, that names of declarations do
// without; docs/glossary.md has the words for what they meant.
var unused = regexp.MustCompile(`(?i)settle|ledger|lasting|blind|anybody|outrun|worse|^round$|^rounds$|^again$|^stands$`)

// TestWords_NamesFollowTheGlossary: no function, type, method or field of the
// product has one of the words that nobody can tell the meaning of.
func TestWords_NamesFollowTheGlossary(t *testing.T) {
	seen := 0
	for _, dir := range []string{"cmd", "internal", "pkg"} {
		err := fs.WalkDir(os.DirFS(root), dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, filepath.Join(root, path), nil, 0)
			if err != nil {
				return err
			}
			for _, name := range declared(file) {
				seen++
				if word := unused.FindString(name.Name); word != "" {
					t.Errorf("%s: %s: choose a word of docs/glossary.md in place of %q", set.Position(name.Pos()), name.Name, word)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen < 1000 {
		t.Errorf("looked at %d names only", seen)
	}
}

// declared returns the names that a file gives to functions, methods, types,
// fields, and package variables and constants.
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
