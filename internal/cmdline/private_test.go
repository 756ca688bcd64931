package cmdline_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hawser-io/hawser/internal/cmdline"
)

// TestMakePrivate: it fixes files of former releases, in a directory of any owner.
func TestMakePrivate(t *testing.T) {
	dir := t.TempDir()
	for _, file := range []struct {
		name string
		mode os.FileMode
	}{{".", 0o755}, {"a", 0o644}, {"b", 0o600}, {"below", 0o755}, {"below/c", 0o660}, {"link", 0}} {
		path := filepath.Join(dir, file.name)
		var err error
		switch {
		case file.mode == 0:
			err = os.Symlink("/nonexistent", path)
		case file.mode == 0o755:
			err = os.MkdirAll(path, 0o700)
		default:
			err = os.WriteFile(path, nil, 0o600)
		}
		if err == nil && file.mode != 0 {
			err = os.Chmod(path, file.mode)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []int{2, 0} {
		if n, err := cmdline.MakePrivate(dir); n != want || err != nil {
			t.Errorf("%d files were open, want %d; %v", n, want, err)
		}
	}
	for name, want := range map[string]os.FileMode{".": 0o755, "a": 0o600, "b": 0o600, "below": 0o755, "below/c": 0o600} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, %v", name, info.Mode(), err)
		}
	}
	if n, err := cmdline.MakePrivate(filepath.Join(dir, "none")); n != 0 || err != nil {
		t.Errorf("no directory: %d, %v", n, err)
	}
}
