package admin

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hawser-io/hawser/internal/broker/call"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// backuper is a store that can copy itself while it is in use. Backup writes a
// consistent copy of everything acknowledged so far into dir, which must not
// exist.
type backuper interface {
	Backup(ctx context.Context, dir string) error
}

// backupChunk is how much of a file one message carries, bytes.
const backupChunk = 256 << 10

// Backup sends a copy of the store, file by file. The copy lies in the scratch
// directory meanwhile; there is one at a time.
func (a *Admin) Backup(ctx context.Context, _ *hawserv1.BackupRequest, send func(*hawserv1.BackupResponse) error) (err error) {
	s, ok := a.store.(backuper)
	if !ok || a.scratch == "" {
		return call.Invalid("", "this broker's store makes no backups", "copy it with the tools of its database")
	}
	if !a.backups.TryLock() {
		return call.Overloaded("another backup is being made", call.ComeBack)
	}
	defer a.backups.Unlock()
	dir, err := os.MkdirTemp(a.scratch, "backup-")
	if err != nil {
		return call.Internal(err)
	}
	defer func() {
		if failed := os.RemoveAll(dir); failed != nil {
			a.log.Error("a finished backup's files cannot be removed", "dir", dir, "error", failed)
		}
	}()
	copied := filepath.Join(dir, "store")
	if err := s.Backup(ctx, copied); err != nil {
		return call.Store(err)
	}
	files := os.DirFS(copied)
	return fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return call.Internal(err)
		}
		if d.IsDir() {
			return nil
		}
		return sendFile(ctx, files, path, send)
	})
}

// sendFile sends one file; an empty one is a message too.
func sendFile(ctx context.Context, files fs.FS, path string, send func(*hawserv1.BackupResponse) error) (err error) {
	f, err := files.Open(path)
	if err != nil {
		return call.Internal(err)
	}
	defer func() {
		if failed := f.Close(); failed != nil && err == nil {
			err = call.Internal(failed)
		}
	}()
	m := &hawserv1.BackupResponse{Path: path}
	for {
		m.Data = make([]byte, backupChunk)
		n, err := io.ReadFull(f, m.Data)
		m.Data = m.Data[:n]
		last := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		switch {
		case err != nil && !last:
			return call.Internal(err)
		case ctx.Err() != nil:
			return call.CallerGone(ctx)
		case n > 0 || m.Path != "":
			if err := send(m); err != nil {
				return &transport.Error{Code: transport.CodeUnavailable, Message: "the stream broke", Err: err}
			}
		}
		if last {
			return nil
		}
		m = &hawserv1.BackupResponse{}
	}
}
