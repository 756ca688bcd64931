package transport_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/hawser-io/hawser/pkg/transport"
)

func TestAddresses(t *testing.T) {
	for s, want := range map[string][]string{
		"a.example:8090":               {"a.example:8090"},
		"a:1,b:2":                      {"a:1", "b:2"},
		" a:1 ,\t[2001:db8::7]:8090\n": {"a:1", "[2001:db8::7]:8090"},
	} {
		if got, err := transport.Addresses(s); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v", s, got, err)
		}
	}
	for s, wrong := range map[string]string{
		"": `""`, "a:1,": `""`, "a:1,b": `"b"`, ":8090": `":8090"`, "a:": `"a:"`, "https://a:1": `"https://a:1"`, "a:1 b:2": `"a:1 b:2"`,
	} {
		if _, err := transport.Addresses(s); err == nil || !strings.Contains(err.Error(), wrong) || !strings.Contains(err.Error(), "host:port") {
			t.Errorf("%q: %v, want an error about %s", s, err, wrong)
		}
	}
}
