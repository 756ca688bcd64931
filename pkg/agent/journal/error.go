package journal

import (
	"errors"
	"fmt"
	"syscall"
)

// Reasons of the condition PersistFailed; see Reason.
const (
	// ReasonFull: the file system, or the quota, has no room.
	ReasonFull = "StateDirectoryFull"
	// ReasonFailed: reading or writing failed in another way.
	ReasonFailed = "StateDirectoryFailed"
)

// Error is a failure of the file system below the state directory. Trying again
// later is right: space may be made, a volume may come back. It wraps a
// *LockedError or a *FormatError if the directory could not be used when it was
// opened and then turns out to be somebody else's.
type Error struct{ Err error }

// Error names the operation, the path and the cause; no contents.
func (e *Error) Error() string { return "state directory: " + e.Err.Error() }

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

// FormatError says that a file was written by a newer version.
type FormatError struct {
	Path   string
	Format byte
}

// Error says what to do.
func (e *FormatError) Error() string {
	return fmt.Sprintf("state directory: %s has format %d, this version knows up to %d: run the newer version that wrote it, or empty the directory; the broker sends everything again", e.Path, e.Format, format)
}

// damage is why something cannot be used.
type damage string

func (d damage) Error() string { return string(d) }

// errTorn is about the end of a log whose last write was cut off: nobody was
// promised that.
const errTorn = damage("it was cut off")

// Why methods do nothing.
var (
	errNotLoaded = errors.New("it was not loaded yet")
	errLoaded    = errors.New("it was loaded, or closed, before")
	errClosed    = errors.New("it was closed")
)

// typed makes an *Error of an error.
func typed(err error) error {
	if err == nil {
		return nil
	}
	return &Error{Err: err}
}

func isNewer(err error) bool {
	return errors.As(err, new(*FormatError))
}
