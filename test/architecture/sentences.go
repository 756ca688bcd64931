package architecture

import (
	"regexp"
	"strings"
	"unicode"
)

// codeMark stands for inline code in a sentence. It is no word, and a sentence may begin with it.
const codeMark = "‹›"

// abbreviations lists words with a full stop that never end a sentence.
var abbreviations = []string{
	"e.g.", "i.e.", "vs.", "cf.", "approx.", "no.", "fig.", "resp.", "incl.", "sec.", "ca.", "st.", "dr.", "mr.", "ms.",
}

// softAbbreviations lists words with a full stop that end a sentence only before a capital.
var softAbbreviations = []string{"etc.", "a.m.", "p.m.", "al.", "inc.", "...", "…"}

var (
	// stop matches each possible end of a sentence: marks, closing marks, and a space.
	stop = regexp.MustCompile(`(?:[.!?]+|…)[)\]"'”’*_]*(?:\s+|$)`)
	// ordinal matches the number of a list item, as in "1. Install it".
	ordinal = regexp.MustCompile(`^[(]?(\d{1,2}|[a-z])[.)]$`)
)

// splitSentences returns the sentences of a paragraph, without the space around them. A full stop
// ends a sentence only before a space: version numbers and file names have none. Abbreviations,
// colons and semicolons end no sentence.
func splitSentences(paragraph string) []string {
	paragraph = strings.Join(strings.Fields(paragraph), " ")
	var sentences []string
	begin := 0
	for _, at := range stop.FindAllStringIndex(paragraph, -1) {
		if endsSentence(paragraph[begin:at[1]], paragraph[at[1]:]) {
			sentences = append(sentences, strings.TrimSpace(paragraph[begin:at[1]]))
			begin = at[1]
		}
	}
	if rest := strings.TrimSpace(paragraph[begin:]); rest != "" {
		sentences = append(sentences, rest)
	}
	return sentences
}

// endsSentence reports whether the stop at the end of sentence ends it. rest is the text after it.
func endsSentence(sentence, rest string) bool {
	words := strings.Fields(sentence)
	last := strings.ToLower(strings.TrimLeft(words[len(words)-1], `([{"'“‘*_`))
	last = strings.TrimRight(last, `)]}"'”’*_`)
	if len(words) == 1 && ordinal.MatchString(words[0]) {
		return false // this is the number of a list item
	}
	for _, a := range abbreviations {
		if last == a {
			return false
		}
	}
	soft := strings.HasSuffix(last, "!") || strings.HasSuffix(last, "?") // x! = y
	for _, a := range softAbbreviations {
		soft = soft || strings.HasSuffix(last, a)
	}
	return !soft || beginsUpper(rest)
}

// beginsUpper reports whether a text begins like a sentence, or is empty.
func beginsUpper(rest string) bool {
	rest = strings.TrimLeft(rest, `([{"'“‘*_`)
	for _, r := range rest {
		return unicode.IsUpper(r) || strings.HasPrefix(rest, codeMark)
	}
	return true
}

// countWords counts the words with a letter or a digit. A word with a hyphen, a path, and a number with a point
// are one word each.
func countWords(sentence string) int {
	n := 0
	for word := range strings.FieldsSeq(sentence) {
		if strings.ContainsFunc(word, isWordRune) {
			n++
		}
	}
	return n
}

func isWordRune(r rune) bool {
	return unicode.IsLetter(r) || unicode.IsDigit(r)
}
