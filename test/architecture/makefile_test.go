package architecture

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// testPattern matches a pattern of test names in the Makefile.
var testPattern = regexp.MustCompile(`-(?:run|skip|bench)[= ]('[^']*'|\w+)|call over,\w+,(\S*)`)

// patternWord matches a part of a test name in such a pattern.
var patternWord = regexp.MustCompile(`\w{3,}`)

// TestMakefile_PatternsMatchTests: a pattern without a test would run or skip nothing, without an error.
func TestMakefile_PatternsMatchTests(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	var names strings.Builder
	for name := range functions(tree(t), func(s source, f *ast.FuncDecl) bool { return s.isTest() && f.Recv == nil }) {
		names.WriteString(name[strings.LastIndex(name, " ")+1:] + "\n") // without the folder
	}
	report(t, unmatchedPatterns(string(text), names.String()))
	wantViolation(t, unmatchedPatterns("go test -run '^$$' -bench LosesAll -skip='^(TestA|TestBoth)$$'", "TestA\nTestBoth\n"), "LosesAll")
}

// unmatchedPatterns returns the words of the Makefile's patterns that no test name contains.
func unmatchedPatterns(makefile, names string) (bad []string) {
	for _, m := range testPattern.FindAllStringSubmatch(makefile, -1) {
		if strings.Contains(m[0], "RUN)'") {
			continue // the pattern of the caller
		}
		for _, word := range patternWord.FindAllString(strings.ReplaceAll(m[1]+m[2], "$(or $(RUN),", ""), -1) {
			if !strings.Contains(names, word) {
				bad = append(bad, "Makefile: no test has a name with "+word+", which is in "+m[0])
			}
		}
	}
	return bad
}
