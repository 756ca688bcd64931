package identity

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDriver_Bearer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	for name, c := range map[string]struct {
		driver     Driver
		file, want string
		has        bool
	}{
		"none":      {Driver{}, "x", "", false},
		"spaces":    {Driver{Token: " \n"}, "x", "", false},
		"data":      {Driver{Token: " abc\n"}, "x", "abc", true},
		"file":      {Driver{TokenFile: file}, "\n abc\n", "abc", true},
		"data wins": {Driver{Token: "abc", TokenFile: file}, "x", "abc", true},
	} {
		if err := os.WriteFile(file, []byte(c.file), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := c.driver.Bearer(); err != nil || got != c.want || c.driver.HasToken() != c.has {
			t.Errorf("%s: %q, %v, %v", name, got, c.driver.HasToken(), err)
		}
	}
	for name, text := range map[string]string{
		"empty": " \n", "two lines": "a\nb", "two words": "a b", "no ASCII": "ä", "a header of its own": "a\r\nx-admin: 1", "endless": strings.Repeat("a", 1<<20),
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := (&Driver{TokenFile: file}).Bearer(); err == nil || got != "" || len(err.Error()) > 1000 {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if _, err := (&Driver{TokenFile: file + ".not"}).Bearer(); err == nil || !strings.Contains(err.Error(), "tokenFile") {
		t.Errorf("%v", err)
	}
}
