package architecture

import (
	"fmt"
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// maxComponents limits the sum of the limits in components, in lines of code. A commit that raises one limit lowers
// others by the same number. A commit that needs less code lowers the limit and this sum. It rose once, by what brokers
// of one database need: the second engine, and facts of one process that became facts of the store (ADR 036 and 037).
const maxComponents = 36842

// components limits the lines of code of each component, so that one person can understand it. Comments, empty
// lines, tests and generated files do not count. The comments list the largest parts, with their lines of code.
var components = []component{
	// The controller on the hub between the Kubernetes API and the broker: specs down, statuses up. Largest parts:
	// package core with all decisions 4,550, clients and saved state on the hub 1,380.
	{"hub-source", []string{"internal/hubsource/", "-internal/hubsource/registration/", "-internal/hubsource/clustercontroller/"}, 5922},
	// The server that stores works and delivers them to agents. Largest parts: the Pebble store 3,000, delivery
	// 2,440, the common part of the listeners 2,170, MQTT 2,100, the state of sync 1,420.
	{"broker", []string{"internal/broker/", "-internal/broker/registration/", "-internal/broker/tokens/", "-internal/broker/store/postgres/", "-internal/broker/store/storecopy/"}, 18698},
	// The store in PostgreSQL, and the copy of a store into another engine. Largest parts: commits 540, the copy 660.
	{"store in PostgreSQL", []string{"internal/broker/store/postgres/", "internal/broker/store/storecopy/"}, 2959},
	// Registration in the broker: requests of agents, the hub cache, tokens. Largest parts: registration 1,570,
	// token reviews 540.
	{"joining at the broker", []string{"internal/broker/registration/", "internal/broker/tokens/", "internal/identity/token/"}, 2289},
	// Registration on the hub: checked requests, the approval of clusters, signed certificates. Largest parts:
	// requests and updates of the hub cache 2,720, the cluster controller without OCM's controllers 1,530.
	{"joining on the hub", []string{"internal/hubsource/registration/", "internal/hubsource/clustercontroller/"}, 4311},
	// Registration in the agent: certificate, Secret and facts of the cluster. Largest parts: decisions 1,030,
	// Secret, sessions and facts 600.
	{"joining on a cluster", []string{"pkg/agent/registration/"}, 1625},
	// The files of the agent: desired works, and the hashes of applied objects. Largest part: package journal 690.
	{"journal and persister", []string{"pkg/agent/journal/", "pkg/agent/persist.go", "pkg/agent/appliedhashes.go"}, 1038},
}

// component is a part of the programs.
type component struct {
	name  string
	paths []string // of directories, or of files; a minus excludes a directory
	limit int      // lines of code
}

// memoryEngine is the store of tests and of the simulator: it is in no program.
const memoryEngine = "internal/broker/store/mem"

func TestComponents_LineLimits(t *testing.T) {
	files := product(t)
	for _, r := range components {
		var sources []source
		for _, s := range files {
			if s.dir() != memoryEngine && !s.generated && !s.forTests() && within(s, r.paths) {
				sources = append(sources, s)
			}
		}
		report(t, checkComponent(r.name, countCode(t, sources), r.limit))
	}
	report(t, checkBudget(components, maxComponents))
	wantViolation(t, checkComponent("attic", 11, 10), "attic has 11 lines of code, at most 10")
	for budget, fails := range map[int]bool{29: true, 30: false, 31: false} {
		bad := checkBudget([]component{{"attic", nil, 10}, {"cellar", nil, 20}}, budget)
		if len(bad) > 0 != fails {
			t.Errorf("limits of 30 lines in a budget of %d: %q", budget, bad)
		}
		if fails {
			wantViolation(t, bad, "names an equal reduction elsewhere; lower other limits by 1 lines")
		}
	}
	const text = "package p\n\n// a comment\nvar a = 1 // another\n/* and\na third */ var s = `\n\n`\n"
	if n := codeLines(t, []byte(text)); n != 5 {
		t.Errorf("counted %d lines", n)
	}
}

// within reports whether a file is in one of the directories, or is one of the files, and in none
// that begins with a minus.
func within(s source, paths []string) bool {
	for _, p := range paths {
		if out, ok := strings.CutPrefix(p, "-"); ok && strings.HasPrefix(s.path, out) {
			return false
		}
	}
	for _, p := range paths {
		if s.path == p || strings.HasSuffix(p, "/") && strings.HasPrefix(s.path, p) {
			return true
		}
	}
	return false
}

func checkComponent(name string, lines, limit int) (bad []string) {
	if lines == 0 || lines > limit {
		bad = append(bad, fmt.Sprintf("%s has %d lines of code, at most %d: find what is said twice", name, lines, limit))
	}
	return bad
}

// checkBudget checks the sum of all limits.
func checkBudget(list []component, budget int) (bad []string) {
	sum := 0
	for _, c := range list {
		sum += c.limit
	}
	if sum > budget {
		bad = append(bad, fmt.Sprintf("the limits of components have a sum of %d lines of code, at most %d: a commit that raises a limit names an equal reduction elsewhere; lower other limits by %d lines", sum, budget, sum-budget))
	}
	return bad
}

func countCode(t *testing.T, files []source) (lines int) {
	t.Helper()
	for _, s := range files {
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(s.path)))
		if err != nil {
			t.Fatal(err)
		}
		lines += codeLines(t, text)
	}
	return lines
}

// codeLines counts the lines with code.
func codeLines(t *testing.T, text []byte) int {
	t.Helper()
	var s scanner.Scanner
	file := token.NewFileSet().AddFile("", -1, len(text))
	s.Init(file, text, func(at token.Position, msg string) { t.Errorf("%s: %s", at, msg) }, 0)
	lines := map[int]bool{}
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return len(lines)
		}
		if tok == token.SEMICOLON && lit == "\n" {
			continue
		}
		for i := range strings.Count(lit, "\n") + 1 {
			lines[file.Line(pos)+i] = true
		}
	}
}
