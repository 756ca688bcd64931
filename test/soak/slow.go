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

// slowness is the pause of the slow subscriber after each event.
const slowness = 2 * time.Second

// slowly subscribes to a cluster's works beside its agent, as an OCM agent would. It reads far too slowly,
// until ctx ends. It returns the number of events that it read.
func slowly(ctx context.Context, dir pki.Dir, addr, cluster string) (read int, err error) {
	conn, err := connect(dir, addr, pki.Agent, cluster)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }() // fails only if it is closed already
	for {
		read += readStream(ctx, conn, cluster)
		if !rest(ctx) { // a pause before the next subscription
			return read, nil
		}
	}
}

// readStream reads one subscription until it ends, and returns the number of events.
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
	// Events that arrived before the connection broke would keep this reader busy for minutes. During that time
	// the broker would have one subscriber less.
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

// rest waits for slowness. It returns false if ctx ends.
func rest(ctx context.Context) bool {
	select {
	case <-time.After(slowness):
		return true
	case <-ctx.Done():
		return false
	}
}
