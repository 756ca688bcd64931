package journal

import (
	"errors"
	"fmt"
	"syscall"
)

// Reasons of the condition Journaled; see Reason.
const (
	// ReasonFull: the file system, or the quota, has no room.
	ReasonFull = "StateDirectoryFull"
	// ReasonFailed: reading or writing failed in another way.
	ReasonFailed = "StateDirectoryFailed"
)

// Error is a failure of the file system below the state directory. Trying again
// later is right: space may be made, a volume may come back. The methods of a
// Journal that say that their error is an *Error return a *LockedError or a
// *FormatError in the same sense, if the directory could not be used when it was
// opened and then turns out to be somebody else's.
type Error struct {
	// Op is what failed, as "write"; Path is the file or directory.
	Op, Path string
	Err      error
}

// Error names the operation, the path and the cause; no contents.
func (e *Error) Error() string { return fmt.Sprintf("state directory: %s %s: %v", e.Op, e.Path, e.Err) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Reason returns ReasonFull if an error of a Journal says that there is no room,
// ReasonFailed otherwise.
func Reason(err error) string {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return ReasonFull
	}
	return ReasonFailed
}

// LockedError says that another process uses the directory.
type LockedError struct{ Dir string }

// Error says what to do.
func (e *LockedError) Error() string {
	return fmt.Sprintf("state directory %s is in use by another process: stop that one, or give each agent a directory of its own", e.Dir)
}

// FormatError says that a file was written by a newer release.
type FormatError struct {
	Path   string
	Format byte
}

// Error says what to do.
func (e *FormatError) Error() string {
	return fmt.Sprintf("state directory: %s has format %d, this release knows up to %d: run the newer release that wrote it, or empty the directory; the broker sends everything again", e.Path, e.Format, format)
}

// damage is why the contents of a file cannot be used.
type damage string

func (d damage) Error() string { return string(d) }

var (
	errNotLoaded = errors.New("journal: used before Load, or after Close")
	errLoaded    = errors.New("journal: loaded already, or closed")
	errNoCursor  = errors.New("journal: checkpoint without a cursor")
)
