package cli

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestSeries_ClockAhead: one backup was made while the clock was a year ahead. Later backups have later names:
// they are kept, and the last one is restored.
func TestSeries_ClockAhead(t *testing.T) {
	dir, now := filepath.Join(t.TempDir(), "backups"), time.Date(2026, 11, 23, 9, 0, 0, 5, time.UTC)
	var made []string
	for _, ahead := range []time.Duration{0, 365 * 24 * time.Hour, time.Minute, time.Minute, time.Hour} {
		name, err := nextName(dir, now.Add(ahead))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		made = append(made, name)
	}
	want := []string{"backup-20261123T090000Z", "backup-20271123T090000Z", "backup-20271123T090001Z", "backup-20271123T090002Z", "backup-20271123T090003Z"}
	if !slices.Equal(made, want) {
		t.Errorf("made %q, want %q", made, want)
	}
	if latest, err := latestOf(dir); err != nil || filepath.Base(latest) != want[4] {
		t.Errorf("the newest is %s, %v", latest, err)
	}
	if _, err := prune(dir, 2); err != nil {
		t.Fatal(err)
	}
	if left, err := series(dir); err != nil || !slices.Equal(left, want[3:]) {
		t.Errorf("left are %q, %v", left, err)
	}
}
