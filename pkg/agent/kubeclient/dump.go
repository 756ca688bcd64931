package kubeclient

import (
	"errors"
	"regexp"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// invalidValue is how a server begins to show the value that it refuses.
const invalidValue = "Invalid value: "

// longestJSON bounds the bytes of a value in JSON that is shown.
const longestJSON = 200

// goValue matches the beginning of a value as Go writes it: a struct, a map, a list or a pointer.
var goValue = regexp.MustCompile(`^(&|\(\*|(\*|\[\d*\]|map\[[^][{}()"]*\])*[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?[{(]|(\*|\[\d*\]|map\[[^][{}()"]*\])+(interface \{\}|struct \{))`)

// typeWord matches the end of what has a blank before its brace in Go.
var typeWord = regexp.MustCompile(`(interface|struct)$`)

// withoutDumps is a server's text without the values that are structs of Go, or endless in JSON, so
// that the field is followed by what is wrong with it: "spec.template: field is immutable". A server
// writes such a value before that. All else stays as it is.
func withoutDumps(text string) string {
	text = withoutDiff(text)
	var short strings.Builder
	for {
		before, value, found := strings.Cut(text, invalidValue)
		short.WriteString(before)
		if !found {
			return short.String()
		}
		n := dumpAt(value)
		rest, more := strings.CutPrefix(value[n:], ": ")
		if n == 0 || !more {
			short.WriteString(invalidValue)
			rest = value
		}
		text = rest
	}
}

// diffBegins is how a server begins to show how two values of Go differ, as it does for a PersistentVolumeClaim.
const diffBegins = "\n@@ -"

// withoutDiff is a text without the lines of such a difference. Each begins with one of four signs.
func withoutDiff(text string) string {
	before, diff, found := strings.Cut(text, diffBegins)
	if !found {
		return text
	}
	lines := strings.Split(diff, "\n")[1:]
	for len(lines) > 0 && (lines[0] == "" || strings.ContainsRune("@ +-\\", rune(lines[0][0]))) {
		lines = lines[1:]
	}
	return strings.TrimRight(before+"\n"+strings.Join(lines, "\n"), "\n")
}

// dumpAt is how many bytes a value at the beginning of a text has, 0 if it is not to be left out.
func dumpAt(text string) int {
	inGo, inJSON := goValue.MatchString(text), strings.HasPrefix(text, "{") || strings.HasPrefix(text, "[")
	if !inGo && !inJSON {
		return 0
	}
	if n := endOfValue(text); inGo || n > longestJSON {
		return n
	}
	return 0
}

// endOfValue is where the last bracket of a value at the beginning of a text is closed, 0 if one stays open. What
// stands in quotes does not count.
func endOfValue(text string) (closed int) {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch strings.IndexByte(`"{([})]:,; `, text[i]) {
		case -1:
		case 0:
			if i = endOfQuoted(text, i); i < 0 {
				return 0
			}
		case 1, 2, 3:
			depth++
		case 4, 5, 6:
			if depth--; depth < 0 {
				return 0
			}
			closed = i + 1
		default:
			inside := depth > 0 || strings.HasPrefix(text[i:], " {") && typeWord.MatchString(text[:i]) // "interface {}"
			if !inside {
				return closed
			}
		}
	}
	if depth > 0 {
		return 0
	}
	return closed
}

// endOfQuoted is where the quote is that closes the one at i; -1 if there is none.
func endOfQuoted(text string, i int) int {
	for i++; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return -1
}

// readable turns an answer of the server into one that a person can read, see withoutDumps. What is known
// of it besides its text stays.
func readable(err error) error {
	var status *apierrors.StatusError
	if !errors.As(err, &status) {
		return err
	}
	message := withoutDumps(status.ErrStatus.Message)
	if message == status.ErrStatus.Message {
		return err
	}
	short := *status.ErrStatus.DeepCopy()
	short.Message = message
	if short.Details != nil {
		for i, c := range short.Details.Causes {
			short.Details.Causes[i] = metav1.StatusCause{Type: c.Type, Field: c.Field, Message: withoutDumps(c.Message)}
		}
	}
	return &apierrors.StatusError{ErrStatus: short}
}
