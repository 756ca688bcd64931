package architecture

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// maxSentence is the limit of words in a sentence. The rule for authors is aimSentence; the test allows a little
// more.
const (
	aimSentence = 25
	maxSentence = 30
)

// rule is the kind of a violation.
type rule string

const (
	ruleWord     rule = "word"
	rulePhrase   rule = "phrase"
	ruleSubject  rule = "subject"
	ruleSentence rule = "sentence"
)

// violation is one place where the tree breaks a rule of its language.
type violation struct {
	rule rule
	text text   // the place
	what string // the word, the source of the phrase, or the sentence
	use  string // the replacement
}

func (v violation) String() string {
	where := v.text.path
	if v.text.line > 0 {
		where = fmt.Sprintf("%s:%d", where, v.text.line)
	}
	return fmt.Sprintf("%s: %s %q in %s %q: %s", where, v.rule, v.what, v.text.kind, shorten(v.text.text), v.use)
}

// shorten returns the beginning of a text on one line.
func shorten(s string) string {
	const most = 90
	s = strings.Join(strings.Fields(s), " ")
	if runes := []rune(s); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return s
}

// isWordList reports whether a file is the list of unused words or its test.
func isWordList(name string) bool {
	base := path.Base(name)
	return base == "unusedwords.go" || base == "unusedwords_test.go"
}

// checkLanguage returns the violations of all rules.
func checkLanguage(texts []text, kept []keptWord) []violation {
	var found []violation
	for _, t := range texts {
		found = append(found, checkWord(t)...)
		found = append(found, checkPhrases(t)...)
		found = append(found, checkSubjects(t)...)
		found = append(found, checkSentences(t)...)
	}
	return slices.DeleteFunc(found, func(v violation) bool { return isKept(v, kept) })
}

func isKept(v violation, kept []keptWord) bool {
	return slices.ContainsFunc(kept, func(k keptWord) bool {
		return v.text.path == k.path && strings.EqualFold(v.what, k.word)
	})
}

// instead maps each inflection of each unused word to its replacement.
var instead = func() map[string]string {
	all := map[string]string{}
	for _, u := range unusedWords {
		for word := range strings.FieldsSeq(u.words) {
			all[word] = u.use
		}
	}
	return all
}()

var (
	known     = regexp.MustCompile(knownNames)
	codeToken = regexp.MustCompile(`[A-Za-z][A-Za-z0-9_]*`)
	camelHump = regexp.MustCompile(`[a-z][A-Z]|_`)
)

// checkWord finds unused words in names.
func checkWord(t text) []violation {
	var found []violation
	for _, name := range namesOf(t) {
		for _, word := range splitIdentifier(known.ReplaceAllString(name, "")) {
			if use, ok := instead[word]; ok {
				found = append(found, violation{ruleWord, t, word, use})
			}
		}
	}
	return found
}

// namesOf returns the names in a text. A text of kind name, and a line of code without a space, is one name. In
// other texts each identifier with an underscore or an inner capital is a name.
func namesOf(t text) []string {
	if t.kind == kindName || t.kind == kindCode && !strings.Contains(t.text, " ") {
		return []string{t.text}
	}
	return slices.DeleteFunc(codeToken.FindAllString(t.text, -1), func(s string) bool { return !camelHump.MatchString(s) })
}

// compiledPhrase is a phrase that is prepared for the search.
type compiledPhrase struct {
	phrase
	pattern *regexp.Regexp
	english *regexp.Regexp // nil for none
	parts   []string       // each match contains one of them
}

var compiledPhrases = func() []compiledPhrase {
	var all []compiledPhrase
	for _, p := range phrases {
		c := compiledPhrase{phrase: p, pattern: regexp.MustCompile(`(?i)` + p.old), parts: requiredParts(p.old)}
		if p.except != "" {
			c.english = regexp.MustCompile(`(?i)` + p.except)
		}
		all = append(all, c)
	}
	return all
}()

// find returns the matches of the phrase in a text, except those in plain English. lower is the text in lower
// case.
func (c compiledPhrase) find(s, lower string) []string {
	if !slices.ContainsFunc(c.parts, func(part string) bool { return strings.Contains(lower, part) }) {
		return nil
	}
	at := c.pattern.FindAllStringIndex(s, -1)
	if at == nil {
		return nil
	}
	var english [][]int
	if c.english != nil {
		english = c.english.FindAllStringIndex(s, -1)
	}
	var found []string
	for _, a := range at {
		overlaps := func(p []int) bool { return a[0] < p[1] && p[0] < a[1] }
		if !slices.ContainsFunc(english, overlaps) {
			found = append(found, strings.TrimSpace(s[a[0]:a[1]]))
		}
	}
	return found
}

func checkPhrases(t text) []violation {
	if t.kind == kindName {
		return nil
	}
	var found []violation
	lower := strings.ToLower(t.text)
	for _, c := range compiledPhrases {
		for _, what := range c.find(t.text, lower) {
			found = append(found, violation{rulePhrase, t, what, c.use})
		}
	}
	return found
}

// checkSubjects finds each pronoun that is a subject without a noun.
func checkSubjects(t text) []violation {
	if t.kind == kindName || t.kind == kindCode {
		return nil
	}
	var found []violation
	for _, sentence := range splitSentences(t.text) {
		for range countFreeSubjects(sentence) {
			found = append(found, violation{ruleSubject, t, freeSubject, "name the client, the caller, the source"})
		}
	}
	return found
}

// countFreeSubjects counts freeSubject in a sentence, except after a noun or a question verb. A
// question has none. An allowed one also allows the next ones of a list, after "and", "or" and commas.
func countFreeSubjects(sentence string) int {
	if strings.HasSuffix(strings.TrimRight(sentence, `)"'*_`), "?") {
		return 0
	}
	n, allowed := 0, false
	words := strings.Fields(strings.ToLower(sentence))
	for i, raw := range words {
		if strings.Trim(raw, `([{"'“‘*_,.;:)]}”’`) != freeSubject {
			continue
		}
		before := words[:i]
		list := i > 0 && (words[i-1] == "and" || words[i-1] == "or" || strings.HasSuffix(words[i-1], ","))
		if hasAntecedent(before) || list && allowed {
			allowed = true
			continue
		}
		n++
	}
	return n
}

func hasAntecedent(before []string) bool {
	if len(before) == 0 {
		return false
	}
	last := strings.Trim(before[len(before)-1], `([{"'“‘*_,)]}”’`)
	two := last
	if len(before) > 1 {
		two = before[len(before)-2] + " " + last
	}
	return slices.Contains(antecedents, last) || slices.Contains(questionVerbs, last) || slices.Contains(questionVerbs, two)
}

// checkSentences finds the sentences of prose that are too long.
func checkSentences(t text) []violation {
	if !isProse(t) {
		return nil
	}
	var found []violation
	for _, sentence := range splitSentences(t.text) {
		if n := countWords(sentence); n > maxSentence {
			found = append(found, violation{ruleSentence, t, shorten(sentence), fmt.Sprintf("%d words, at most %d: split it", n, maxSentence)})
		}
	}
	return found
}

// isProse reports whether a text has sentences whose length counts.
func isProse(t text) bool {
	return t.kind == kindProse || t.kind == kindComment
}
