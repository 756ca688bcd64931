package architecture

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestCodeMap_LinksEachPackage: a package without a link in docs/code-map.md is hard to find.
func TestCodeMap_LinksEachPackage(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/code-map.md"))
	if err != nil {
		t.Fatal(err)
	}
	report(t, checkCodeMap(tree(t), string(page)))

	files := []source{mustParse(t, "pkg/x/x.go", "package x"), mustParse(t, "pkg/x/y/y.go", "package y")}
	wantViolation(t, checkCodeMap(files, "[y](../pkg/x/y/y.go)"), "pkg/x has no link")
	wantViolation(t, checkCodeMap(files, "[x](../pkg/x)"), "pkg/x/y has no link")
	wantViolation(t, checkCodeMap([]source{mustParse(t, "test/x/y/y_test.go", "package y")}, ""), "test/x/y has no link")
}

var codeMapLink = regexp.MustCompile(`\]\(\.\./([^)#]+)`)

// checkCodeMap requires a link to each package or to one of its files. A package that serves only tests or only
// its parent is covered by a link to a folder above it.
func checkCodeMap(files []source, page string) (bad []string) {
	linked := map[string]bool{}
	for _, m := range codeMapLink.FindAllStringSubmatch(page, -1) {
		if path.Ext(m[1]) == ".go" {
			m[1] = path.Dir(m[1])
		}
		linked[m[1]] = true
	}
	for _, s := range files {
		dir := s.dir()
		if strings.HasPrefix(dir, "test/") || testOnly(dir) || strings.Contains(dir, "/internal/") {
			for !linked[dir] && dir != "." {
				dir = path.Dir(dir)
			}
		}
		if !s.generated && !linked[dir] {
			bad = append(bad, s.dir()+" has no link in docs/code-map.md")
		}
	}
	slices.Sort(bad)
	return slices.Compact(bad)
}
