package telemetry

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Printable returns a text without control characters for a terminal, except those in keep. Others are escaped
// as JSON and Go do, so that JSON stays valid.
func Printable(text, keep string) string {
	clean := func(r rune) bool { return r != utf8.RuneError && unicode.IsPrint(r) || strings.ContainsRune(keep, r) }
	if utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return !clean(r) }) < 0 {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[0])
		case clean(r), r == utf8.RuneError:
			b.WriteRune(r)
		default:
			for _, half := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, `\u%04x`, half)
			}
		}
		text = text[size:]
	}
	return b.String()
}

// PrintableWriter writes whole texts to W as [Printable] returns them, and keeps line feeds.
type PrintableWriter struct{ W io.Writer }

// Write implements [io.Writer].
func (p PrintableWriter) Write(text []byte) (int, error) {
	if _, err := io.WriteString(p.W, Printable(string(text), "\n\t")); err != nil {
		return 0, err
	}
	return len(text), nil
}
