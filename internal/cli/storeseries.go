package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-io/hawser/internal/broker/store/pebble"
)

// A series is a directory of backups named by their time, as a CronJob makes them.

// seriesName is the time layout of the name of a backup in a series: names sort by time.
const seriesName = "backup-20060102T150405Z"

// series returns the names of the backups in a directory, the oldest first.
func series(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if _, parsed := time.Parse(seriesName, e.Name()); parsed == nil && e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// nextName returns the name of a new backup, later than all in the series.
//
// Scenario:
//
//	t1: a clock is one year ahead for two seconds.
//	t2: a backup gets its name from that clock.
//
// Without this: that backup is the newest for a year, the only one kept, and the one that is restored.
func nextName(dir string, now time.Time) (string, error) {
	names, err := series(dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil && len(names) > 0 && names[len(names)-1] >= now.UTC().Format(seriesName) {
		now, err = time.Parse(seriesName, names[len(names)-1])
		now = now.Add(time.Second)
	}
	return now.UTC().Format(seriesName), err
}

// finished reports whether a backup of a series is complete.
func finished(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name, pebble.IncompleteName))
	return errors.Is(err, fs.ErrNotExist)
}

// latestOf returns the newest finished backup of a series.
func latestOf(dir string) (string, error) {
	names, err := series(dir)
	for _, name := range slices.Backward(names) {
		if finished(dir, name) {
			return filepath.Join(dir, name), nil
		}
	}
	if err == nil {
		err = hint(fmt.Errorf("%s has no finished backup", dir), "backups of a series are made with: hawser store backup --into %s", dir)
	}
	return "", err
}

// prune removes the finished backups of a series except the newest ones, and incomplete copies that no program
// is writing. It returns the removed ones.
func prune(dir string, keep int) (removed []string, err error) {
	names, err := series(dir)
	for _, name := range slices.Backward(names) {
		path := filepath.Join(dir, name)
		if finished(dir, name) {
			if keep--; keep >= 0 {
				continue
			}
		} else if lock, used := lockStore(path); used != nil {
			continue // another program writes it
		} else {
			err = errors.Join(err, lock.Close())
		}
		err = errors.Join(err, os.RemoveAll(path))
		removed = append(removed, path)
	}
	return removed, err
}

// asideName is the time layout of the directory into which a restore moves the former store.
const asideName = pebble.AsidePrefix + "20060102T150405Z"

// setAside moves the store of a stopped broker into a directory below its own, and returns that. It returns ""
// if there was nothing to move.
func setAside(dir string, now time.Time) (aside string, err error) {
	lock, err := lockStore(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", storeHint(err, "stop the broker first")
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	entries, err := os.ReadDir(dir)
	to := filepath.Join(dir, now.UTC().Format(asideName))
	for _, e := range entries {
		if pebble.NoStore(e.Name()) {
			continue
		}
		if aside == "" && err == nil {
			aside, err = to, os.Mkdir(to, 0o700)
		}
		if err == nil {
			err = os.Rename(filepath.Join(dir, e.Name()), filepath.Join(to, e.Name()))
		}
	}
	return aside, err
}

// lockStore locks the directory of a store. The error is [pebble.ErrInUse] if another program has it.
func lockStore(dir string) (*engine.Lock, error) {
	lock, err := engine.LockDirectory(dir, vfs.Default)
	if err == nil || errors.As(err, new(*fs.PathError)) {
		return lock, err
	}
	return nil, fmt.Errorf("%s: %w", dir, pebble.ErrInUse)
}
