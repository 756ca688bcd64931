package cmdline_test

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/hawser-io/hawser/internal/cmdline"
)

// FuzzDecode: what the library takes is taken, and everything else is refused with a text.
func FuzzDecode(f *testing.F) {
	f.Fuzz(func(t *testing.T, text []byte) {
		fresh := func() *file { return &file{Gates: cmdline.NewGates(map[string]bool{"Opened": true})} }
		for strict, decode := range map[bool]func([]byte, any) error{true: cmdline.Decode, false: cmdline.DecodeLenient} {
			library := yaml.Unmarshal(text, fresh())
			if strict {
				library = yaml.UnmarshalStrict(text, fresh())
			}
			err := decode(text, fresh())
			if (err == nil) != (library == nil) || err != nil && strings.TrimSpace(err.Error()) == "" {
				t.Errorf("strict %t: %v, the library says %v", strict, err, library)
			}
		}
	})
}
