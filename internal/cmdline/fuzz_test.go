package cmdline_test

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/hawser-io/hawser/internal/cmdline"
)

// FuzzDecode: text that the library accepts is accepted, and all other text is rejected with an error text.
func FuzzDecode(f *testing.F) {
	f.Fuzz(func(t *testing.T, text []byte) {
		fresh := func() *file { return &file{Gates: cmdline.NewFeatureGates(map[string]bool{"Opened": true})} }
		for strict, decode := range map[bool]func([]byte, any) error{true: cmdline.Decode, false: cmdline.DecodeLenient} {
			library := yaml.Unmarshal(text, fresh())
			if strict {
				library = yaml.UnmarshalStrict(text, fresh())
			}
			err := decode(text, fresh())
			if (err == nil) != (library == nil) || err != nil && strings.TrimSpace(err.Error()) == "" {
				t.Errorf("strict %t: %v, the library returns %v", strict, err, library)
			}
		}
	})
}
