package architecture

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// phrasesOf returns the phrases and the free subjects in a comment.
func phrasesOf(comment string) []string {
	var found []string
	t := text{"a.go", 1, kindComment, comment}
	for _, v := range append(checkPhrases(t), checkSubjects(t)...) {
		found = append(found, v.what)
	}
	return found
}

func TestPhrases_CatchTheOldConcepts(t *testing.T) {
	for _, comment := range []string{
		"far is what is known of the agent of one cluster.",
		"It asks the far again.",
		"Behind a plain broker the agent answers.",
		"See package plain.",
		"It is a broker that keeps nothing.",
		"Where no broker keeps anything, agents list.",
		"What the hub has stands in the [mirror].",
		"The broker mirrors what a hub says.",
		"standing is what is known of the peer.",
		"Changes of the standing may have been missed.",
		"Nothing casts doubt on the hub.",
		"In doubt a person decides.",
		"A life of the hub has ended.",
		"The next life begins.",
		"The broker has rooms.",
		"This room is for streams.",
		"An ask waits for its turn.",
		"The status is void.",
		"It counts no longer.",
		"It drops the event without a word.",
		"It takes the source's word.",
		"It tells the agent.",
		"The certificate ends.",
		"It does not dare to delete.",
		"The bus loses events.",
		"stray takes it that a work is gone.",
		"It took it that the hub is back.",
		"It takes note that a record is new.",
		"The new one is in the place of the old.",
		"A party has heard of it.",
		"A stock agent lists.",
		"Nobody waits.",
		"Who drops an event says so.",
		"This is for who asks.",
		"It waits for whoever comes.",
		"Made anew.",
	} {
		if len(phrasesOf(comment)) == 0 {
			t.Errorf("nothing is found in %q", comment)
		}
	}
}

func TestPhrases_LetEnglishPass(t *testing.T) {
	for _, comment := range []string{
		"It is far more than one window, as far as known, and so far nothing.",
		"The time lies in the far future, at the far end.",
		"Metrics are plain HTTP. A plain error is a plain text.",
		"The agent keeps nothing of objects without a work.",
		"Images come from a registry mirror.",
		"The standing watch lists. A replica is standing by.",
		"When in doubt, read the log.",
		"The certificate is in the last tenth of its life. It lives on disk.",
		"There is no room on the disk: make room.",
		"The agent asks for a token and asks again.",
		"A third-party broker is stateless.",
		"Tags tell the same versions apart.",
		"Texts are compared word for word.",
		"The log shows who asked, who was refused, and who left.",
		"Operators who approve it, or who wait, see it.",
		"Who may delete it?",
		"One can decide who signs.",
		"The object is changed in place.",
	} {
		if found := phrasesOf(comment); len(found) > 0 {
			t.Errorf("%q is found in %q", found, comment)
		}
	}
}

func TestUnusedWords_AreListedOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, u := range unusedWords {
		for word := range strings.FieldsSeq(u.words) {
			if seen[word] || slices.Contains(watchedWords, word) || strings.ToLower(word) != word {
				t.Errorf("%q is listed twice, or not in lower case", word)
			}
			seen[word] = true
		}
	}
	for _, p := range phrases {
		if p.use == "" || slices.Contains(requiredParts(p.old), "") {
			t.Errorf("phrase %s has no word to use, or a match without any letter", p.old)
		}
	}
}

// planted has one violation of each kind in each kind of file.
var planted = []struct {
	path, src string
	rule      rule
	what      string
}{
	{"a/name.go", "package a\nfunc f() { oldGraves := 1 }\n", ruleWord, "graves"},
	{"a/tag.go", "package a\ntype t struct { f int `json:\"is_stranger\"` }\n", ruleWord, "stranger"},
	{"a/metric.go", "package a\nvar v = f(\"hawser_broker_graves\")\n", ruleWord, "graves"},
	{"a/mention.go", "package a\n// It calls newDesk.\nvar v int\n", ruleWord, "desk"},
	{"desk/file.go", "package a\n", ruleWord, "desk"},
	{"a/strays.go", "package a\n", ruleWord, "strays"},
	{"a/inline.md", "See `hawser_broker_graves`.\n", ruleWord, "graves"},
	{"a/config.yaml", "isFar: true\n", ruleWord, "far"},
	{"a/api.proto", "message Grave {}\n", ruleWord, "grave"},
	{"a/comment.go", "package a\n// f takes it that x is y.\nvar f int\n", rulePhrase, "takes it that"},
	{"a/string.go", "package a\nvar v = f(\"no word\" + \" of a client\")\n", rulePhrase, "no word of"},
	{"a/page.md", "The new one is in the place of\nthe old one.\n", rulePhrase, "in the place of"},
	{"a/table.md", "| a | b |\n|---|---|\n| c | nobody |\n", rulePhrase, "nobody"},
	{"a/block.md", "```\nrefused: nobody\n```\n", rulePhrase, "nobody"},
	{"a/note.sh", "run # for somebody\n", rulePhrase, "somebody"},
	{"a/who.go", "package a\n// Who drops it reports it.\nvar w int\n", ruleSubject, "who"},
	{"a/long.go", "package a\n// It has" + strings.Repeat(" one word", 15) + ".\nvar w int\n", ruleSentence, ""},
	{"a/long.md", "It has" + strings.Repeat(" one word", 15) + ".\n", ruleSentence, ""},
	{"CHANGELOG.md", "* It has" + strings.Repeat(" one word", 15) + "\n* It ends\n", ruleSentence, ""},
}

// harmlessFiles are files without a violation.
var harmlessFiles = map[string]string{
	"a/good.go":      "package a\n// It has" + strings.Repeat(" one word", 14) + ".\nvar thirdParty = f(\"text/plain\")\n",
	"a/good.md":      "| It has" + strings.Repeat(" one word", 30) + " |\n\n```\n" + strings.Repeat("word ", 40) + "\n```\n",
	"a/code.md":      "It has" + strings.Repeat(" `one word`", 30) + " [a link](nobody/graves.md).\n",
	"testdata/b.go":  "package desk\n",
	".hidden/b.go":   "package desk\n",
	"unusedwords.go": "package a\nvar grave int\n",
	"a/unparsed.go":  "grave",
}

// writeFile writes a file of a tree below dir, with its folders.
func writeFile(t *testing.T, dir, name, src string) {
	t.Helper()
	file := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCheckLanguage_FindsPlantedViolations(t *testing.T) {
	dir := t.TempDir()
	for _, p := range planted {
		writeFile(t, dir, p.path, p.src)
	}
	for name, src := range harmlessFiles {
		writeFile(t, dir, name, src)
	}
	texts, broken, err := treeTexts(dir, isWordList)
	if err != nil || !slices.Equal(broken, []string{"a/unparsed.go"}) {
		t.Fatalf("broken files %q, error %v", broken, err)
	}
	found := checkLanguage(texts, nil)
	for _, p := range planted {
		if !slices.ContainsFunc(found, func(v violation) bool {
			return v.rule == p.rule && (v.text.path == p.path || v.text.path == filepath.Dir(p.path)) && (p.what == "" || v.what == p.what)
		}) {
			t.Errorf("%s: %s %q is not found", p.path, p.rule, p.what)
		}
	}
	for _, v := range found {
		if harmlessFiles[v.text.path] != "" {
			t.Error(v)
		}
	}
	if kept := checkLanguage(texts, []keptWord{{"a/strays.go", "strays", "a test"}}); len(kept) != len(found)-1 {
		t.Errorf("one kept word hides %d violations", len(found)-len(kept))
	}
}

func TestPrintCounts_ReadsBrokenSource(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.go"), []byte("package a\nimport \"no/such\"\nfunc (g *Grave) Take() {}\ntype Grave int\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := PrintCounts(&out, dir, 1); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`(?m)^ +1  grave$`, `(?m)^ +2  in all$`, `a.go:3:17 Take`, `a.go:4:6 Grave`, `20 paragraphs, drawn with seed 1`} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("the counts lack %s:\n%s", want, out.String())
		}
	}
}

// TestTreeTexts_ReadsTestdata: a tree has unused words in a script, in a test of alerts, and in data that
// is exempt.
func TestTreeTexts_ReadsTestdata(t *testing.T) {
	dir := t.TempDir()
	for name, src := range map[string]string{
		"internal/a/testdata/a.txtar":         "# Nobody is there.\nexec hawser anew\ncmp stdout anew.txt\n-- anew.txt --\n# nobody\n",
		"internal/a/testdata/nobody.golden":   "nobody\n",
		"internal/a/testdata/former/old.yaml": "# nobody\n",
		"internal/a/testdata/fuzz/FuzzA/1":    "nobody\n",
		"test/alerts/testdata/a.yaml":         "# For nobody.\n- name: nobody leads\n",
		"test/charts/testdata/values.yaml":    "name: nobody\n",
	} {
		writeFile(t, dir, name, src)
	}
	texts, broken, err := treeTexts(dir, isWordList)
	if err != nil || len(broken) > 0 {
		t.Fatalf("files that do not parse: %q, error %v", broken, err)
	}
	var found []string
	for _, v := range checkLanguage(texts, nil) {
		found = append(found, fmt.Sprintf("%s:%d %s", v.text.path, v.text.line, strings.ToLower(v.what)))
	}
	slices.Sort(found)
	if want := []string{
		"internal/a/testdata/a.txtar:1 nobody", "internal/a/testdata/a.txtar:4 anew",
		"test/alerts/testdata/a.yaml:1 nobody", "test/alerts/testdata/a.yaml:2 nobody",
	}; !slices.Equal(found, want) {
		t.Errorf("found %q, want %q", found, want)
	}
}
