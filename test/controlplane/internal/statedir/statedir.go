// Package statedir owns the files of a control plane on disk. It has a lock that lets one process use the
// directory at a time, the port for clients, the certificates and the kubeconfig. It also has the paths of
// etcd's data and socket.
//
//	DIR/lock         held by the running process, contains its id
//	DIR/port         the https port of the last start
//	DIR/pki/         see package pki
//	DIR/kubeconfig   the administrator's, written at every start
//	DIR/etcd/        etcd's data
//	DIR/etcd.sock    etcd's socket (elsewhere if DIR is too long for one)
package statedir

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// maxSocketPath is the longest path of a Unix socket that both Linux (107
// bytes) and macOS (103 bytes) accept.
const maxSocketPath = 103

// Dir is a state directory that this process has locked.
type Dir struct {
	path string
	lock *os.File
}

// Open creates the directory if needed and locks it. It returns an error if another process holds the lock. The
// kernel releases the lock when the process ends in any way.
func Open(path string) (*Dir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("create state directory: %w", err)
	}
	name := filepath.Join(path, "lock")
	lock, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the state directory: %w", err)
	}
	err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = fmt.Errorf("state directory %s is in use by %s, which holds %s: stop it or choose another --dir", path, owner(lock), name)
	} else if err != nil {
		err = fmt.Errorf("lock %s: %w", name, err)
	} else {
		err = writeOwner(lock)
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &Dir{path: path, lock: lock}, nil
}

// Close releases the lock.
func (d *Dir) Close() error { return d.lock.Close() }

// Path returns the absolute path of a file or directory in the state directory.
func (d *Dir) Path(name string) string { return filepath.Join(d.path, name) }

// EtcdSocket returns the path of etcd's socket. It is in the state directory, whose mode excludes other users.
// If that path is too long for a socket, it is in the directory for temporary files.
func (d *Dir) EtcdSocket() (string, error) {
	if socket := d.Path("etcd.sock"); len(socket) <= maxSocketPath {
		return socket, nil
	}
	sum := sha256.Sum256([]byte(d.path))
	socket := filepath.Join(os.TempDir(), fmt.Sprintf("controlplane-%x.sock", sum[:8]))
	if len(socket) > maxSocketPath {
		return "", fmt.Errorf("the paths of --dir (%s) and of TMPDIR (%s) are both too long for a socket: shorten one", d.path, os.TempDir())
	}
	return socket, nil
}

// owner describes the process whose id is in the lock file.
func owner(lock io.Reader) string {
	if data, err := io.ReadAll(io.LimitReader(lock, 32)); err == nil {
		if pid, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil {
			return fmt.Sprintf("process %d", pid)
		}
	}
	return "another process" // the process has not written its id yet
}

func writeOwner(lock *os.File) error {
	if err := lock.Truncate(0); err != nil {
		return fmt.Errorf("write lock: %w", err)
	}
	if _, err := lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return fmt.Errorf("write lock: %w", err)
	}
	return nil
}

// writeFile replaces a file atomically: neither a kill nor a reader sees a partial file.
func writeFile(name string, data []byte) error {
	draft := name + ".new"
	if err := os.WriteFile(draft, data, 0o600); err != nil {
		return err
	}
	return os.Rename(draft, name)
}
