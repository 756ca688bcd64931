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

// components limits the lines of code of each part, so that one person can understand it. Comments, empty
// lines, tests and generated files do not count. A commit that raises a limit gives the reason; a commit that
// needs less lowers the limit. The comments list the largest pieces, in lines of code.
var components = []struct {
	name  string
	paths []string // of folders, or of files
	limit int
}{
	// Pieces:
	//   - statuses from a cursor on 240, withheld deletions 170, comparison by digest 150, shares of clusters 155,
	//     Delivered 117
	//   - behind a stateless broker: answering lists and publishing again 300, clients that meet while something is
	//     in flight 25
	//   - also there: works that only an agent has 265, digests 90, connected agents and the reports about them 130
	//   - a missing role 4, changed files on disk 1
	//   - Events about works, bounded and counted, warnings first, 195
	//   - works by condition, and how long statuses take, 33
	//   - clusters without an agent, as the broker reports them, and the conditions of their works 76
	//   - statuses that the hub never accepts 65, saved elsewhere in hub-source
	{"hub-source", []string{"internal/hubsource/", "-internal/hubsource/registration/", "-internal/hubsource/clustercontroller/"}, 5975},
	// Pieces:
	//   - Pebble 2,830: of these the check that names each wrong index entry 250, a store without disk space 230
	//   - also of these: the proof of a complete shutdown 165, copies that are never incomplete 130
	//   - OCM agents 200, the inventory in pages 190, order of late events 150, recreated works 140
	//   - limits of one peer at the listener 940, input that is expensive to read or keep 100, quotas of a source
	//     and a cluster 420
	//   - ends of connections 280, the denylist 200, certificates from before a time 45, the audit stream 310
	//   - publishes that these do not delay 30, two fronts on one port 110
	//   - MQTT 2,090: of these judging packets before the codec 300, idle connections without an owner 40
	//   - the transport of each client 20, log lines of clients that connect, disconnect and are rejected 33
	//   - known agents and the state of each cluster 290, the reports of statuses about works 60, how long versions take 66
	//   - reports of clusters without an agent to sources 70
	//   - connections that depend on a token 270; readers, handshakes and rejections that pause 100
	{"broker", []string{"internal/broker/", "-internal/broker/registration/", "-internal/broker/tokens/"}, 16583},
	// Pieces:
	//   - the hub cache and its views 290, requests and their queue 350, the streams 580, the source's 220
	//   - acceptance 70, Leases in sum 55
	//   - tokens 750, most of it asking the hub in time; shares of addresses 20
	//   - the time from which certificates are valid 29
	{"joining at the broker", []string{"internal/broker/registration/", "internal/broker/tokens/", "internal/identity/token/"}, 2356},
	// Pieces:
	//   - allowed requests and the parts of them that reach the hub 1,300: of these fields of Events 50
	//   - also of these: undecided requests by requester 145, limits of the writes for a cluster 80
	//   - rights of accounts of add-ons 180, the signer of clusters 51, Leases 210, updates of the hub cache 530
	//   - a fleet without OCM's controllers: decisions 900, signing 140, the shell 470
	//   - an outage of the broker does not count as silence of agents 95, saved elsewhere in it
	//   - members and denials marked in metadata, for a hub restored without status, 62
	//   - no signature after a denial 35, the time from which certificates of a cluster are valid 267
	{"joining on the hub", []string{"internal/hubsource/registration/", "internal/hubsource/clustercontroller/"}, 4378},
	// Pieces:
	//   - decisions 1,030: of these reports 135, trying the certificate again 25, moving to a new one 29
	//   - also of these: the SHA-256 of a request's key, by which an operator identifies the request, 12
	//   - Secret, sessions and facts of the cluster 600: of these a Secret of another owner 15
	//   - a certificate that the hub wants renewed, or rejects, 28
	{"joining on a cluster", []string{"pkg/agent/registration/"}, 1708},
	// The former directory 100, unnecessary writes after a restart 70, the crash model 80, one
	// process per directory 45.
	{"journal and persister", []string{"pkg/agent/journal/", "pkg/agent/persist.go", "pkg/agent/appliedhashes.go"}, 1052},
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
