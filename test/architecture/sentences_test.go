package architecture

import (
	"slices"
	"strings"
	"testing"
)

func TestSplitSentences_EndsAtStopsOnly(t *testing.T) {
	for _, c := range []string{ // a bar is where a sentence ends
		"One.|Two!|Three?|Four",
		"An abbreviation, e.g. Etcd, i.e. A store, vs. Kafka, does not end it.",
		"Records, leases, etc. are read.|Records, leases, etc.|The rest follows.",
		"It needs Go 1.24.|Version v1.2.3 is older than 1.10.",
		"The file queue.go has it.|So has docs/glossary.md.",
		"A colon: It does not end it; Neither does a semicolon.",
		"A quote \"ends.\"|A bracket (also ends.)|And so does 'this.'",
		"A sentence begins with `code`.|‹› begins one as well.",
		"get returns it.|setAll changes it.",
		"Wait 0.5 s.|Then go on.",
		"It waits ... and goes on.|It waits ...|It stops.",
		"It is on, a != b, or x! is set.",
		"1. Install it.|Then start it.",
		"a) Install it.",
		"See no. 5 and Fig. 3.",
		"Spaces   and\nlines do not matter.|Not\n  here.",
		"Is it so?!|Yes.",
		"**Bold.**|Plainer.",
	} {
		want := strings.Split(strings.Join(strings.Fields(c), " "), "|")
		if got := splitSentences(strings.ReplaceAll(c, "|", " ")); !slices.Equal(got, want) {
			t.Errorf("split %q\nwant  %q", got, want)
		}
	}
	if got := splitSentences("  \n "); len(got) != 0 {
		t.Errorf("an empty paragraph has sentences %q", got)
	}
}

func TestCountWords_CountsLettersAndDigits(t *testing.T) {
	for s, want := range map[string]int{
		"":                                  0,
		"One word-with-hyphens, and a/path": 4,
		"‹› is code – a dash is no word":    7,
		"75 to 80 % of it":                  5,
		"store → feed":                      2,
		"(v1.2.3)":                          1,
	} {
		if got := countWords(s); got != want {
			t.Errorf("countWords(%q) is %d, want %d", s, got, want)
		}
	}
}
