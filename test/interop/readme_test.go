package interop

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestReadme_NamesEveryCase: the README names the test of every case, and only existing tests.
func TestReadme_NamesEveryCase(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../interop/README.md")
	if err != nil {
		t.Fatal(err)
	}
	var named, there []string
	for _, m := range regexp.MustCompile("`(Test(?:C[0-9]|Klusterlet_)\\w+)`").FindAllSubmatch(readme, -1) {
		named = append(named, string(m[1]))
	}
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && regexp.MustCompile("^Test(C[0-9]|Klusterlet_)").MatchString(fn.Name.Name) {
				there = append(there, fn.Name.Name)
			}
		}
	}
	slices.Sort(named)
	slices.Sort(there)
	if diff := cmp.Diff(there, named); diff != "" {
		t.Errorf("tests (-there +in the README):\n%s", diff)
	}
}
