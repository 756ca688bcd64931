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

// components lists how many lines of code each part may have that one has to be able to hold
// in the head: without comments, empty lines, tests and generated files. Whoever needs
// more says why in the commit that raises a limit; whoever needs less lowers it. What the
// largest pieces are for stands beside each.
var components = []struct {
	name  string
	paths []string // of folders, or of files
	limit int
}{
	// Statuses from a cursor on 240, deletions left to a person 170, comparison by digest 150,
	// shares of clusters 155, Delivered 117; in the place of a broker that keeps nothing: answering
	// lists and publishing again 300, parties that meet while something is on its way 25, what only an agent has 265, digests 90,
	// which agents are there and what works say of that 130, a role that is missing 4, that files on disk
	// have changed 1; Events about works, bounded and counted, warnings first, 195; works by condition, and how long statuses take, 33;
	// which clusters have no agent, as the broker tells, and what works say of that 76; statuses that the hub never takes 65, saved elsewhere in it.
	{"hub-source", []string{"internal/hubsource/", "-internal/hubsource/registration/", "-internal/hubsource/clustercontroller/"}, 5975},
	// Pebble 2,830, of which a check that names each wrong index entry takes 250, what a store
	// without room does 230, the proof that it was closed whole 165, copies that cannot be taken
	// half 130; stock agents 200,
	// the inventory in pages 190, order of late events 150, works made anew 140; what one peer
	// may use of the port 940, what it may send that is dear to read or keep 100, what a source
	// and a cluster may have 420, when connections end 280, who is denied 200, certificates from before a time 45, the audit stream 310,
	// that publishes do not feel these 30, that two fronts may share a port 110, MQTT 2,090, of which 300 judge packets before the codec does
	// and 40 let idle connections be without an owner,
	// over what each party is connected 20, who comes, goes and is refused in the log 33; what is known
	// of each cluster's agents and the state of each cluster 290, what statuses say of works 60, how long
	// versions take 66, telling sources of clusters without an agent 70; connections that rest on a
	// token 270; readers, handshakes and refusals that rest 100.
	{"broker", []string{"internal/broker/", "-internal/broker/registration/", "-internal/broker/tokens/"}, 16583},
	// The mirror and who sees what of it 290, requests and their turn 350, the streams 580, the source's
	// 220, acceptance 70, Leases in sum 55; tokens 750, of which asking the hub in time takes most, and shares of addresses 20; from when on certificates count 29.
	{"joining at the broker", []string{"internal/broker/registration/", "internal/broker/tokens/", "internal/identity/token/"}, 2356},
	// What may be asked and what of it reaches the hub 1,300, of which fields of Events take 50, who asked for how much
	// of what is undecided 145, how much is written for a cluster 80,
	// rights of accounts of add-ons 180, who signs for clusters 51, Leases
	// 210, what the mirror is told 530; what a fleet needs without OCM's controllers: decisions 900,
	// signing 140, the shell 470; that an outage of the broker is not taken for silence of agents 95,
	// which were saved elsewhere in it; marks of members and denials in metadata, for a hub that is restored
	// without status, 62, that nothing is signed after a denial 35, and from when on certificates of a cluster count 267.
	{"joining on the hub", []string{"internal/hubsource/registration/", "internal/hubsource/clustercontroller/"}, 4378},
	// Decisions 1,030, of which reports take 135, trying the certificate again 25 and moving to a new one
	// 29, the SHA-256 of a request's key, by which a person tells it from a stranger's, 12; Secret, of which that it is somebody else's takes 15, sessions and facts of the cluster 600; a certificate that the hub wants anew, or does not take, 28.
	{"joining on a cluster", []string{"pkg/agent/registration/"}, 1708},
	// The former directory 100, unnecessary writes after a restart 70, the crash model 80, one
	// process per directory 45.
	{"journal and keeper", []string{"pkg/agent/journal/", "pkg/agent/persist.go", "pkg/agent/appliedhashes.go"}, 1052},
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
	wantViolation(t, checkComponent("attic", 11, 10), "attic has 11 lines of code, at most 10")
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

// codeLines counts the lines on which there is more than a comment.
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
