package cmdline

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// others are the rights of everybody but the owner of a file.
const others = 0o077

// KeepPrivate keeps others from reading what this program writes, whatever umask it was
// started with: works can carry Secrets.
func KeepPrivate() { syscall.Umask(others) }

// MakePrivate takes others the rights to the files below dir, which a former release, or a
// copy, may have left them. The directories stay as they are: a volume may be somebody
// else's. It returns how many files others could use; the error names those that are not
// this program's to change.
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
	if errors.Is(err, fs.ErrNotExist) { // it is made yet
		err = nil
	}
	return open, errors.Join(append(failed, err)...)
}
