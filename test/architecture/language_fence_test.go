package architecture

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// maxShown is the limit of printed violations per file.
const maxShown = 10

func TestLanguage_HasNoUnusedWordsAndLongSentences(t *testing.T) {
	texts, broken, err := treeTexts(root, isWordList)
	if err != nil || len(broken) > 0 {
		t.Fatalf("files that do not parse: %q, error %v", broken, err)
	}
	if len(texts) < 50_000 {
		t.Errorf("read only %d texts: is %s still the root of the repository?", len(texts), root)
	}
	files := map[string][]string{}
	for _, v := range checkLanguage(texts, keptWords) {
		files[v.text.path] = append(files[v.text.path], v.String())
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		lines := files[name]
		if len(lines) > maxShown {
			lines = append(lines[:maxShown], fmt.Sprintf("and %d more", len(lines)-maxShown))
		}
		t.Errorf("%s\n  %s", name, strings.Join(lines, "\n  "))
	}
}

func TestKeptWords_AreStillThere(t *testing.T) {
	texts, _, err := treeTexts(root, isWordList)
	if err != nil {
		t.Fatal(err)
	}
	all := checkLanguage(texts, nil)
	for _, k := range keptWords {
		if k.why == "" || !slices.ContainsFunc(all, func(v violation) bool { return isKept(v, []keptWord{k}) }) {
			t.Errorf("%s keeps %q without a reason, or without a need", k.path, k.word)
		}
	}
}
