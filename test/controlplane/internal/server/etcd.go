package server

import (
	"context"
	"errors"
	"io"
	"net/url"
	"os"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"google.golang.org/grpc/grpclog"
)

// walSegment is enough for a small cluster. By default etcd sets aside twice
// 64 MB on disk.
const walSegment = 4 << 20

// startEtcd starts an etcd with one member that serves clients on a Unix
// socket, and returns when it does.
func startEtcd(ctx context.Context, dataDir, socket string, fail context.CancelCauseFunc) error {
	wal.SegmentSizeBytes = walSegment
	// kube-apiserver opens and drops some two hundred connections to etcd when
	// it starts, and gRPC would warn about each.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, os.Stderr))
	cfg := embed.NewConfig()
	cfg.Dir = dataDir
	cfg.LogLevel = "error"
	cfg.UnsafeNoFsync = true // a kill loses nothing, a power cut may
	// There are no peers, but etcd insists on an address for them.
	peers := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls, cfg.AdvertiseClientUrls = peers, peers, peers
	cfg.ListenClientUrls = []url.URL{{Scheme: "unix", Path: socket}} // replaces one that a kill left
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	etcd, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	background(ctx, fail, "etcd", func() error {
		select {
		case <-ctx.Done():
			return nil
		case err := <-etcd.Err():
			return err
		}
	})
	select {
	case <-etcd.Server.ReadyNotify():
		return nil
	case <-etcd.Server.StopNotify():
		return errors.New("stopped before it was ready")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
