package kubeclient

import (
	"errors"
	"regexp"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// invalidValue precedes the value that a server rejects, in its error text.
const invalidValue = "Invalid value: "

// longestJSON bounds the bytes of a shown JSON value.
const longestJSON = 200

// goValue matches the beginning of a value in Go syntax: a struct, a map, a list or a pointer.
var goValue = regexp.MustCompile(`^(&|\(\*|(\*|\[\d*\]|map\[[^][{}()"]*\])*[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?[{(]|(\*|\[\d*\]|map\[[^][{}()"]*\])+(interface \{\}|struct \{))`)

// typeWord matches the end of a Go type that has a blank before its brace.
var typeWord = regexp.MustCompile(`(interface|struct)$`)

// withoutDumps removes values that are Go structs or very long JSON from a server's text. A server writes such
// a value before the cause. The field is then followed by the cause: "spec.template: field is immutable". The
// rest is unchanged.
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

// diffBegins starts the difference of two Go values in a server's text, as for a PersistentVolumeClaim.
const diffBegins = "\n@@ -"

// withoutDiff removes the lines of such a difference from a text. Each begins with one of four signs.
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

// dumpAt returns the length in bytes of the value at the beginning of a text, 0 if it must not be removed.
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

// endOfValue returns the end of the last closing bracket of the value at the beginning of a text, 0 if a
// bracket stays open. Brackets in quotes do not count.
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

// endOfQuoted returns the index of the closing quote of the one at i; -1 if there is none.
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

// readable makes an error of the server readable, see withoutDumps. Its other properties are unchanged.
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
