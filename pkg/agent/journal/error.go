package journal

import (
	"errors"
	"fmt"
	"syscall"
)

// Reasons of the condition conditions.TypePersistFailed; see Reason.
const (
	// ReasonFull: the file system or the quota is full.
	ReasonFull = "StateDirectoryFull"
	// ReasonFailed: another failure of a read or a write.
	ReasonFailed = "StateDirectoryFailed"
)

// Error is a failure of the file system below the state directory. A later retry is right: space may be freed,
// or a volume may come back. It wraps a *LockedError or a *FormatError if the directory was unusable at Open
// and later turns out to belong to another process or version.
type Error struct{ Err error }

// Error names the operation, the path and the cause, but no contents.
func (e *Error) Error() string { return "state directory: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Reason returns ReasonFull for an error of a full directory, ReasonFailed otherwise.
func Reason(err error) string {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return ReasonFull
	}
	return ReasonFailed
}

// LockedError means that another process uses the directory.
type LockedError struct{ Dir string }

// Error names the next step.
func (e *LockedError) Error() string {
	return fmt.Sprintf("state directory %s is in use by another process: stop that one, or give each agent a directory of its own", e.Dir)
}

// FormatError means that a newer version wrote a file.
type FormatError struct {
	Path   string
	Format byte
}

// Error names the next step.
func (e *FormatError) Error() string {
	return fmt.Sprintf("state directory: %s has format %d, this version reads formats up to %d. Run the newer version that wrote it, or empty the directory; the broker sends everything again", e.Path, e.Format, format)
}

// damage is the reason why a record is unusable.
type damage string

func (d damage) Error() string { return string(d) }

// errTorn means that the last write of the log is incomplete. That write was never confirmed.
const errTorn = damage("it is truncated")

// Errors of methods that cannot use the directory.
var (
	errNotLoaded = errors.New("it was not loaded yet")
	errLoaded    = errors.New("it was loaded, or closed, before")
	errClosed    = errors.New("it was closed")
)

// typed converts an error to an *Error.
func typed(err error) error {
	if err == nil {
		return nil
	}
	return &Error{Err: err}
}

func isNewer(err error) bool {
	return errors.As(err, new(*FormatError))
}
