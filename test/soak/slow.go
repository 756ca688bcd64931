package main

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/hawser-io/hawser/internal/pki"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

const bundles = "io.open-cluster-management.works.v1alpha1.manifestbundles"

// slowness is how long the slow subscriber thinks about an event.
const slowness = 2 * time.Second

// slowly subscribes to a cluster's works beside its agent, as an OCM agent would. It reads far too slowly,
// until ctx ends. It returns the number of events that it read.
func slowly(ctx context.Context, dir pki.Dir, addr, cluster string) (read int, err error) {
	conn, err := connect(dir, addr, pki.Agent, cluster)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }() // only ever fails when closed already
	for {
		read += readStream(ctx, conn, cluster)
		if !rest(ctx) { // the broker is away
			return read, nil
		}
	}
}

// readStream reads one subscription until it ends, and returns how many events.
func readStream(ctx context.Context, conn *grpc.ClientConn, cluster string) (read int) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := cloudeventsv1.NewCloudEventServiceClient(conn).Subscribe(ctx,
		&cloudeventsv1.SubscriptionRequest{ClusterName: cluster, DataType: bundles})
	if err != nil {
		return 0
	}
	if _, err := stream.Header(); err != nil {
		return 0
	}
	// What has arrived before a connection broke would be read for minutes, and
	// the broker would have a subscriber less.
	go func() {
		conn.WaitForStateChange(ctx, connectivity.Ready)
		cancel()
	}()
	for {
		if _, err := stream.Recv(); err != nil {
			return read
		}
		read++
		if !rest(ctx) {
			return read
		}
	}
}

// rest tells whether to go on afterwards.
func rest(ctx context.Context) bool {
	select {
	case <-time.After(slowness):
		return true
	case <-ctx.Done():
		return false
	}
}
