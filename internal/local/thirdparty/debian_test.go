package thirdparty

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../../.."

func TestFetch_FoundInTheCache(t *testing.T) {
	for program, commands := range map[string][]string{
		"mosquitto":  {"mosquitto", "mosquitto_passwd"},
		"squid":      {"squid", "root/usr/lib/squid/basic_ncsa_auth"},
		"prometheus": {"prometheus", "promtool"},

		"prometheus-alertmanager": {"prometheus-alertmanager"},

		"postgresql": {"postgres", "initdb", "pg_basebackup"},
		"pgbouncer":  {"pgbouncer"},
	} {
		dir, err := FetchPackage(t.Context(), root, program, t.Output())
		if err != nil {
			t.Fatal(err)
		}
		for _, command := range append(commands, "packages") {
			if _, err := os.Stat(filepath.Join(dir, command)); err != nil {
				t.Error(err)
			}
		}
		var output strings.Builder
		again, err := FetchPackage(t.Context(), root, program, &output)
		if err != nil || again != dir || output.Len() > 0 {
			t.Errorf("fetched again: %s after %s, %v, %q", again, dir, err, &output)
		}
	}
}

func TestFetch_ErrorNamesMissingFile(t *testing.T) {
	t.Run("no source tree", func(t *testing.T) {
		if _, err := FetchPackage(t.Context(), t.TempDir(), "squid", nil); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "source tree") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("unknown program", func(t *testing.T) {
		if _, err := FetchPackage(t.Context(), root, "emacs", nil); err == nil || !strings.Contains(err.Error(), "mosquitto|squid|prometheus|prometheus-alertmanager|postgresql|pgbouncer") {
			t.Errorf("got %v, want those there are", err)
		}
	})
	// apt sets a configuration of apt-get with empty package lists.
	apt := func(t *testing.T, more string) (cache string) {
		empty := t.TempDir()
		conf := filepath.Join(empty, "apt.conf")
		if err := os.WriteFile(conf, []byte("Dir::State::lists \""+empty+"\";\n"+more), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("APT_CONFIG", conf)
		cache = filepath.Join(empty, "cache")
		t.Setenv("HAWSER_CACHE", cache)
		return cache
	}
	t.Run("no package lists", func(t *testing.T) {
		apt(t, "")
		if path, err := FetchPackage(t.Context(), root, "mosquitto", nil); err != nil {
			t.Errorf("got %s, %v: the lists can be fetched too", path, err)
		}
	})
	t.Run("no network", func(t *testing.T) {
		cache := apt(t, "Acquire::http::Proxy \"http://127.0.0.1:1\";\nAcquire::https::Proxy \"http://127.0.0.1:1\";\nAcquire::Retries \"0\";\n")
		_, err := FetchPackage(t.Context(), root, "mosquitto", nil)
		if err == nil || !strings.Contains(err.Error(), "is there a network") {
			t.Errorf("got %v, want what to do", err)
		}
		left, err := filepath.Glob(filepath.Join(cache, "mosquitto", "*"))
		if err != nil || len(left) != 0 {
			t.Errorf("left %v, %v", left, err)
		}
	})
	t.Run("no apt-get", func(t *testing.T) {
		tools := t.TempDir()
		for _, name := range []string{"sh", "cut", "cksum", "dirname"} {
			if err := os.Symlink("/usr/bin/"+name, filepath.Join(tools, name)); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv("PATH", tools)
		t.Setenv("HAWSER_CACHE", filepath.Join(tools, "cache"))
		_, err := FetchPackage(t.Context(), root, "mosquitto", nil)
		if err == nil || !strings.Contains(err.Error(), "apt-get is not in the PATH") {
			t.Errorf("got %v, want what to do", err)
		}
	})
}
