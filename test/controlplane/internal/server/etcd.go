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

// walSegment is the size of an etcd log segment, enough for a small cluster. The default is 64 MB, allocated
// twice.
const walSegment = 4 << 20

// startEtcd starts an etcd with one member on a Unix socket. It returns when etcd serves clients.
func startEtcd(ctx context.Context, dataDir, socket string, fail context.CancelCauseFunc) error {
	wal.SegmentSizeBytes = walSegment
	// kube-apiserver opens and closes about 200 connections to etcd at its start. gRPC would log a warning for
	// each.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, os.Stderr))
	cfg := embed.NewConfig()
	cfg.Dir = dataDir
	cfg.LogLevel = "error"
	cfg.UnsafeNoFsync = true // a kill loses nothing, a power loss may
	// etcd requires an address for peers, although there are none.
	peers := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls, cfg.AdvertiseClientUrls = peers, peers, peers
	cfg.ListenClientUrls = []url.URL{{Scheme: "unix", Path: socket}} // etcd replaces a socket that a killed process left
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
