package conditions

import (
	"regexp"
	"strings"

	workv1 "open-cluster-management.io/api/work/v1"
)

// reasons tell the texts of errors apart, in one or two words that a person reads first. The
// first that fits counts. They go by the text and not by the error, since what is said of a
// manifest that was left alone is known from its condition only.
var reasons = []struct {
	word string
	in   *regexp.Regexp
}{
	{"unknown kind", regexp.MustCompile(`^the server doesn't have a resource type |^the server does not serve `)},
	{"unknown fields", regexp.MustCompile(`^the cluster does not know .* dropped what it does not know`)},
	{"namespace missing", regexp.MustCompile(`^namespaces "[^"]*" not found`)},
	{"webhook failed", regexp.MustCompile(`failed calling webhook "`)},
	{"denied", regexp.MustCompile(`admission webhook "[^"]*" denied the request| denied request: `)},
	{"protected", regexp.MustCompile(`is one of the objects that agents on this cluster live by`)},
	{"forbidden", regexp.MustCompile(` is forbidden: |^forbidden: |^not allowed to apply |^the owner of this cluster does not let |^the executor is not allowed to `)},
	{"immutable", regexp.MustCompile(`\bimmutable\b|may not change fields|updates to .* are forbidden|cannot change roleRef`)},
	{"invalid", regexp.MustCompile(` is invalid: |\(this does not pass by itself: `)},
	{"conflict", regexp.MustCompile(`^Apply failed with \d+ conflict|the object has been modified`)},
	{"too large", regexp.MustCompile(`(?i)request entity too large|is too large`)},
	{"not found", regexp.MustCompile(` not found`)},
	{"no answer", regexp.MustCompile(`connection refused|deadline exceeded|i/o timeout|no such host|unexpected EOF|currently unable to handle the request|does not answer|cannot be reached`)},
}

// reasonOf is the word for the text of an error, otherwise if there is none.
func reasonOf(text, otherwise string) string {
	for _, r := range reasons {
		if r.in.MatchString(text) {
			return r.word
		}
	}
	return otherwise
}

// Reasoned is the text of an error, with its reason in a word or two before it where that is known.
func Reasoned(text string) string {
	if word := reasonOf(text, ""); word != "" && !strings.HasPrefix(text, word+": ") {
		return word + ": " + text
	}
	return text
}

// refusedObject is how a server begins when it refuses an object: with the name of it.
var refusedObject = regexp.MustCompile(`^([A-Za-z0-9-]+)(?:\.[a-z0-9.-]+)? "([^"]*)" is (?:forbidden|invalid): `)

// withoutName is a text without the name of the object at its beginning, where it is that of m.
func withoutName(text string, m workv1.ManifestResourceMeta) string {
	named := refusedObject.FindStringSubmatch(text)
	if named == nil || named[2] != m.Name || !strings.EqualFold(named[1], m.Kind) && named[1] != m.Resource {
		return text
	}
	return text[len(named[0]):]
}

// maxName bounds in bytes what an object is called, maxAdvice what stays of the end of a text
// that is too long: an advice is there.
const (
	maxName   = 400
	maxAdvice = 400
)

// reasonFirst is what a work says of an object: why, which one, what the server said with what to do
// about it, and last how many there are. The middle of an endless text goes first.
func reasonFirst(word string, m workv1.ManifestResourceMeta, text, count string) string {
	head, tail := word+": "+cutTo(maxName, nameOf(m)), "; "+count
	if text = withoutName(text, m); text != "" {
		head += ": "
	}
	return head + cutMiddle(maxSummary-len(head)-len(tail), text) + tail
}

// cutMiddle keeps beginning and end of a text that is too long.
func cutMiddle(limit int, s string) string {
	const gap = " … "
	if s = strings.ToValidUTF8(s, "?"); len(s) <= limit {
		return s
	}
	end := min(maxAdvice, limit*2/3)
	return strings.ToValidUTF8(s[:limit-end-len(gap)], "") + gap + strings.ToValidUTF8(s[len(s)-end:], "")
}
