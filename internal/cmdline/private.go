package cmdline

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// others are the permission bits of all users except the owner of a file.
const others = 0o077

// KeepPrivate makes new files of this program unreadable for other users, with any inherited umask, because
// works can contain Secrets.
func KeepPrivate() { syscall.Umask(others) }

// MakePrivate removes the permissions of other users from the files below dir, which a former release or a copy
// may have left. It does not change directories, because a volume may have another owner. It returns the number
// of files that others could access. The error names files that this program may not change.
func MakePrivate(dir string) (open int, err error) {
	var failed []error
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil || info.Mode()&others == 0 {
			return err
		}
		open++
		failed = append(failed, os.Chmod(path, info.Mode().Perm()&^others))
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) { // the directory is created later
		err = nil
	}
	return open, errors.Join(append(failed, err)...)
}
