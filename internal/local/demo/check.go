package demo

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/hawser-io/hawser/internal/local/fleet"
)

const (
	lockFile = "lock"
	// freeBytes is the disk space for a first build and the data of the control planes.
	freeBytes = 6 << 30
)

// hinted is an error with its remedy.
type hinted struct {
	what, hint string
}

func (e *hinted) Error() string { return e.what }

// Hint returns the remedy.
func (e *hinted) Hint() string { return e.hint }

// with returns the command that runs the demo with flags.
func (d *Demo) with(flags string) string { return fmt.Sprintf(d.Command, flags) }

// lock prevents a second demo in the directory. The system releases the lock when this process ends in any way.
func (d *Demo) lock() (unlock func(), err error) {
	dir := d.Dir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		owner, _ := os.ReadFile(f.Name()) // only for the message
		_ = f.Close()
		return nil, &hinted{
			what: fmt.Sprintf("a demo already runs in %s (process %s)", dir, strings.TrimSpace(string(owner))),
			hint: "stop it with Ctrl-C there, or run a second one: " + d.with("--dir=DIRECTORY --subnet=NUMBER"),
		}
	}
	if err := errors.Join(f.Truncate(0), writePID(f)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

func writePID(f *os.File) error {
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// check checks the prerequisites before the build, which takes minutes.
func (d *Demo) check() error {
	for _, name := range []string{"go.mod", "deploy/agent", "test/controlplane/build.sh"} {
		if _, err := os.Stat(filepath.Join(d.Root, name)); err != nil {
			return &hinted{
				what: fmt.Sprintf("%s is no checkout of Hawser: %v", d.Root, err),
				hint: "run the demo in a clone of the repository, or name one: " + d.with("--root=DIRECTORY"),
			}
		}
	}
	if d.Brokers < 1 || d.Brokers > fleet.MaxBrokers || d.Brokers > 1 && d.Transport == fleet.Mosquitto {
		return &hinted{
			what: fmt.Sprintf("%d brokers: a demo has 1 to %d, and 1 with mosquitto", d.Brokers, fleet.MaxBrokers),
			hint: "use " + d.with("--brokers=3"),
		}
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(d.Dir, &fs); err != nil {
		return err
	}
	if free := fs.Bavail * uint64(fs.Bsize); free < freeBytes {
		return &hinted{
			what: fmt.Sprintf("only %d MiB are free in %s", free>>20, d.Dir),
			hint: fmt.Sprintf("free up to %d MiB, or choose another disk: %s", uint64(freeBytes)>>20, d.with("--dir=DIRECTORY")),
		}
	}
	for _, addr := range fleet.Addresses(d.config()) {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return &hinted{
				what: fmt.Sprintf("the demo needs %s: %v", addr, err),
				hint: "stop the program that listens there, or move the demo to other addresses: " + d.with("--subnet=NUMBER"),
			}
		}
		if err := l.Close(); err != nil {
			return err
		}
	}
	return nil
}
