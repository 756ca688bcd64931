package architecture

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/hawser-io/hawser"

// root is the path of the repository, relative to this package.
const root = "../.."

// source is one Go file.
type source struct {
	// path is relative to the root of the repository, with slashes.
	path      string
	fset      *token.FileSet
	ast       *ast.File
	lines     int
	generated bool
}

func (s source) dir() string { return path.Dir(s.path) }

func (s source) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }

// forTests reports whether only tests can use the file. Such files are below test/, in internal/testkit, or in a
// contract suite such as internal/broker/store/storetest.
func (s source) forTests() bool {
	return s.isTest() || strings.HasPrefix(s.path, "test/") || testOnly(s.dir())
}

// testOnly reports whether a package serves only tests: internal/testkit, and each <package>test below
// <package>.
func testOnly(dir string) bool {
	above, name := path.Split(dir)
	subject, ok := strings.CutSuffix(name, "test")
	return dir == "internal/testkit" || strings.HasPrefix(dir, "internal/testkit/") ||
		ok && subject != "" && slices.Contains(strings.Split(above, "/"), subject)
}

// imports returns the paths that the file imports.
func (s source) imports() []string {
	paths := make([]string, 0, len(s.ast.Imports))
	for _, i := range s.ast.Imports {
		paths = append(paths, strings.Trim(i.Path.Value, `"`))
	}
	return paths
}

// uses lists the lines where the file names pkgPath.name, as "path:line".
func (s source) uses(pkgPath, name string) []string {
	local := ""
	for _, i := range s.ast.Imports {
		if strings.Trim(i.Path.Value, `"`) != pkgPath {
			continue
		}
		local = path.Base(pkgPath)
		if i.Name != nil {
			local = i.Name.Name
		}
	}
	if local == "" {
		return nil
	}
	return s.selectors(func(x, sel string) bool { return x == local && sel == name })
}

// selectors lists the lines of the expressions x.sel that match.
func (s source) selectors(match func(x, sel string) bool) []string {
	var found []string
	ast.Inspect(s.ast, func(n ast.Node) bool {
		if e, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := e.X.(*ast.Ident); ok && match(x.Name, e.Sel.Name) {
				p := s.fset.Position(e.Pos())
				found = append(found, p.String())
			}
		}
		return true
	})
	return found
}

func parse(name string, src []byte) (source, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return source{}, err
	}
	return source{
		path: name, fset: fset, ast: f,
		lines: bytes.Count(src, []byte("\n")), generated: ast.IsGenerated(f),
	}, nil
}

// mustParse parses a counterexample of a rule.
func mustParse(t *testing.T, name, src string) source {
	t.Helper()
	s, err := parse(name, []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// tree returns all Go files of the repository, including those of nested modules.
func tree(t *testing.T) []source {
	t.Helper()
	files, err := loadTree()
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 50 {
		t.Fatalf("found %d Go files below %s: is it still the root of the repository?", len(files), root)
	}
	return files
}

// product returns all Go files except those of nested modules.
func product(t *testing.T) []source {
	t.Helper()
	var files []source
	for _, s := range tree(t) {
		if !strings.HasPrefix(s.path, "test/controlplane/") && !strings.HasPrefix(s.path, "test/interop/sdkgo/") && !strings.HasPrefix(s.path, "tools/") {
			files = append(files, s)
		}
	}
	return files
}

var loadTree = sync.OnceValues(func() ([]source, error) {
	var files []source
	err := filepath.WalkDir(root, func(file string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := e.Name()
		if e.IsDir() {
			if file != root && (strings.HasPrefix(name, ".") || name == "bin" || name == "testdata") {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".go" {
			return nil
		}
		src, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		s, err := parse(filepath.ToSlash(rel), src)
		files = append(files, s)
		return err
	})
	return files, err
})

// report fails the test if there are violations.
func report(t *testing.T, violations []string) {
	t.Helper()
	for _, v := range violations {
		t.Error(v)
	}
}

// wantViolation fails the test unless one of the violations contains want.
func wantViolation(t *testing.T, violations []string, want string) {
	t.Helper()
	if len(violations) == 0 || !strings.Contains(strings.Join(violations, "\n"), want) {
		t.Errorf("violations %q, want one about %q", violations, want)
	}
}
