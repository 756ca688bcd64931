package admin

import (
	"context"

	"github.com/hawser-io/hawser/internal/broker/call"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// backuper is a store that can send a consistent copy of everything acknowledged
// so far, in parts: one file after the other, with its path in the first part of
// each. data is valid during the call of send.
type backuper interface {
	Backup(ctx context.Context, send func(path string, data []byte) error) error
}

// Backup sends a copy of the store, file by file. There is one at a time.
func (a *Admin) Backup(ctx context.Context, _ *hawserv1.BackupRequest, send func(*hawserv1.BackupResponse) error) error {
	s, ok := a.store.(backuper)
	if !ok {
		return call.Invalid("", "this broker's store makes no backups", "copy it with the tools of its database")
	}
	err := s.Backup(ctx, func(path string, data []byte) error {
		if err := send(&hawserv1.BackupResponse{Path: path, Data: data}); err != nil {
			return &transport.Error{Code: transport.CodeUnavailable, Message: "the stream broke", Err: err}
		}
		return nil
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return call.CallerGone(ctx)
	default:
		return call.Store(err)
	}
}
