package telemetry_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"github.com/hawser-io/hawser/internal/telemetry"
)

// TestPrintable: characters that a terminal interprets are escaped as in JSON and Go, and others stay.
func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"":                       "",
		"web-1 is Ready: ü 東 😀":  "web-1 is Ready: ü 東 😀",
		"a\tb\nc":                "a\tb\nc",
		"\x1b[2J\x07\r\x7f":      `\u001b[2J\u0007\u000d\u007f`,
		"\u009b31m \u202e\u2066": `\u009b31m \u202e\u2066`,
		"\ufeff\u200b\u2028":     `\ufeff\u200b\u2028`,
		"\xff\xc3":               `\xff\xc3`,
		"\ufffd":                 "\ufffd",
		"\U000e0001":             `\udb40\udc01`,
	} {
		if got := telemetry.Printable(text, "\n\t"); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	if got := telemetry.Printable("a\nb", ""); got != `a\u000ab` {
		t.Errorf("as one line: %q", got)
	}
}

// TestNewLogger_WritesNoControlCharacters: for any name, message or error of a peer, a log line is one line
// without control characters. JSON stays valid, with the same meaning.
func TestNewLogger_WritesNoControlCharacters(t *testing.T) {
	const hostile = "x\x1b[2J\x07\r\u009b31m\u202e\u2028\x7f\xff\nlevel=ERROR msg=evil"
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		log, err := telemetry.NewLogger(&out, "info", format)
		if err != nil {
			t.Fatal(err)
		}
		log.Info(hostile, "peer", hostile, "all", []string{hostile})
		text := out.String()
		if strings.Count(text, "\n") != 1 || strings.IndexFunc(strings.TrimSpace(text), func(r rune) bool { return !unicode.IsPrint(r) && r != unicode.ReplacementChar }) >= 0 {
			t.Errorf("%s: %q", format, text)
		}
		var object map[string]any
		if format == "json" {
			if err := json.Unmarshal(out.Bytes(), &object); err != nil || !strings.Contains(object["peer"].(string), "\u009b31m\u202e") {
				t.Errorf("%v: %q", err, object)
			}
		}
	}
}
