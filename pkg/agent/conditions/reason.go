package conditions

import (
	"regexp"
	"strconv"
	"strings"

	workv1 "open-cluster-management.io/api/work/v1"
)

// reasons classify error texts. Each has one or two words that begin the message, and a next step that is used
// if the text has none. The first match applies. Texts are matched instead of errors, because the condition of a
// manifest that was left alone has only the text.
var reasons = []struct {
	name string
	in   *regexp.Regexp
	next string
}{
	{name: "unknown kind", in: regexp.MustCompile(`^the server doesn't have a resource type |^the server does not serve `)},
	{name: "unknown fields", in: regexp.MustCompile(`^the cluster does not know .* dropped what it does not know`)},
	{name: "namespace missing", in: regexp.MustCompile(`^namespaces "[^"]*" not found`)},
	{name: "namespace ends", in: regexp.MustCompile(`because it is being terminated`)},
	{name: "definition ends", in: regexp.MustCompile(`while custom resource definition is terminating`)},
	{name: "webhook failed", in: regexp.MustCompile(`failed calling webhook "`), next: "check that the service of this webhook runs on the cluster"},
	{name: "denied", in: regexp.MustCompile(`admission webhook "[^"]*" denied the request| denied request: |violates PodSecurity `)},
	{name: "over quota", in: regexp.MustCompile(` exceeded quota: `)},
	{name: "protected", in: regexp.MustCompile(`is an object that agents on this cluster need`)},
	{name: "forbidden", in: regexp.MustCompile(` is forbidden: |^forbidden: |^not allowed to apply |^the owner of this cluster does not let |^the executor is not allowed to `)},
	{name: "conflict", in: regexp.MustCompile(`^Apply failed with \d+ conflict`), next: "take the field out of the manifest, or set force in its update strategy"},
	{name: "conflict", in: regexp.MustCompile(`the object has been modified`)},
	{name: "immutable", in: regexp.MustCompile(`\b(is|are) immutable\b|may not change|cannot be changed|updates to .* are forbidden|cannot change roleRef`)},
	{name: "invalid", in: regexp.MustCompile(` is invalid: |\(this does not pass by itself: |an empty namespace may not be set`)},
	{name: "too large", in: regexp.MustCompile(`(?i)request entity too large|is too large`)},
	{name: "not found", in: regexp.MustCompile(` not found`)},
	{name: "no answer", in: regexp.MustCompile(`connection refused|connection reset|connection lost|deadline exceeded|i/o timeout|handshake timeout|Client\.Timeout|no such host|unexpected EOF|currently unable to handle the request|does not answer|cannot be reached`)},
}

// reasonOf returns the word for an error text, otherwise if none matches, and the next step.
func reasonOf(text, otherwise string) (word, next string) {
	for _, r := range reasons {
		if r.in.MatchString(text) {
			return r.name, r.next
		}
	}
	return otherwise, ""
}

// oneLine returns a text in one line: a table row shows nothing after a line end.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// Reasoned returns an error text, preceded by its reason in a word or two if that is known.
func Reasoned(text string) string {
	text = oneLine(text)
	word, next := reasonOf(text, "")
	if word != "" && !strings.HasPrefix(text, word+": ") {
		text = word + ": " + text
	}
	if next != "" {
		text += "; " + next
	}
	return text
}

// refusedObject matches the beginning of a server's refusal of an object, which contains its name.
var refusedObject = regexp.MustCompile(`^([A-Za-z0-9-]+)(?:\.[a-z0-9.-]+)? "([^"]*)" is (?:forbidden|invalid): `)

// withoutName removes the name of the object from the beginning of a text if it is that of m.
func withoutName(text string, m workv1.ManifestResourceMeta) string {
	named := refusedObject.FindStringSubmatch(text)
	if named == nil || named[2] != m.Name || !strings.EqualFold(named[1], m.Kind) && named[1] != m.Resource {
		return text
	}
	return text[len(named[0]):]
}

// maxName bounds the name of an object in a message, maxAdvice the kept end of a long text, which has the next
// step. Both are in bytes.
const (
	maxName   = 400
	maxAdvice = 400
)

// messageOf returns a work's message about an object with this error text of the server or the agent.
func messageOf(m workv1.ManifestResourceMeta, text, otherwise, count string) string {
	text = oneLine(text)
	word, next := reasonOf(strings.ReplaceAll(text, strconv.Quote(m.Name), `""`), otherwise) // the object's name is no reason
	if next != "" {
		count = next + "; " + count
	}
	return reasonFirst(word, m, text, count)
}

// reasonFirst returns a work's message about an object: the reason, the object, the server's text with the next
// step, and the count of failures. A long text loses its middle.
func reasonFirst(word string, m workv1.ManifestResourceMeta, text, count string) string {
	head, tail := word+": "+cutTo(maxName, nameOf(m)), "; "+count
	if text = withoutName(text, m); text != "" {
		head += ": "
	}
	return head + cutMiddle(maxSummary-len(head)-len(tail), text) + tail
}

// cutMiddle returns a text in one line. It keeps beginning and end of a long one.
func cutMiddle(limit int, s string) string {
	const gap = " … "
	if s = strings.ToValidUTF8(oneLine(s), "?"); len(s) <= limit {
		return s
	}
	end := min(maxAdvice, limit*2/3)
	return strings.ToValidUTF8(s[:limit-end-len(gap)], "") + gap + strings.ToValidUTF8(s[len(s)-end:], "")
}
