package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

const (
	source = "bench"
	// publishers is the number of publishes in flight, and publisherConns that of their connections.
	publishers     = 64
	publisherConns = 8
	// deliveredWithin is the longest time until a version is delivered.
	deliveredWithin = time.Minute
)

// load publishes the first version of all works.
func (f *fleet) load(ctx context.Context) error {
	return f.publishAll(ctx, func(ctx context.Context, conn transport.Conn, worker int) error {
		for i := worker; i < len(f.agents)*f.works; i += publishers {
			if err := f.publish(ctx, conn, f.agents[i%len(f.agents)].cluster, i/len(f.agents), 1); err != nil {
				return err
			}
		}
		return nil
	})
}

// update publishes a new version of the first work of n clusters, in rounds. It returns the time of each from the
// start of its publish until the agent has it. An agent belongs to one publisher, so it has one update at a time.
func (f *fleet) update(ctx context.Context, n, rounds int) ([]time.Duration, error) {
	took := make([][]time.Duration, publishers)
	err := f.publishAll(ctx, func(ctx context.Context, conn transport.Conn, worker int) error {
		for range rounds {
			for i := worker; i < n; i += publishers {
				d, err := f.deliver(ctx, conn, f.agents[i])
				if err != nil {
					return err
				}
				took[worker] = append(took[worker], d)
			}
		}
		return nil
	})
	var all []time.Duration
	for _, t := range took {
		all = append(all, t...)
	}
	return all, err
}

// deliver publishes a new version of a work and waits until the agent has it.
func (f *fleet) deliver(ctx context.Context, conn transport.Conn, a *agent) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, deliveredWithin)
	defer cancel()
	version, began := f.version.Add(1), time.Now()
	if err := f.publish(ctx, conn, a.cluster, 0, version); err != nil {
		return 0, err
	}
	for {
		select {
		case d := <-a.arrived:
			if d.version >= int64(version) {
				return d.at.Sub(began), nil
			}
		case <-ctx.Done():
			return 0, fmt.Errorf("%s: version %d was not delivered: %w", a.cluster, version, ctx.Err())
		}
	}
}

// publishAll runs all publishers, each on one of the source's connections.
func (f *fleet) publishAll(ctx context.Context, run func(ctx context.Context, conn transport.Conn, worker int) error) error {
	dialer, err := f.dialer(pki.Source, source, sourceIP)
	if err != nil {
		return err
	}
	var conns []transport.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close() // all answers have arrived
		}
	}()
	for range publisherConns {
		c, err := dialer.Dial(ctx)
		if err != nil {
			return err
		}
		conns = append(conns, c)
	}
	errs := make([]error, publishers)
	var wg sync.WaitGroup
	for w := range publishers {
		wg.Go(func() { errs[w] = run(ctx, conns[w%len(conns)], w) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (f *fleet) publish(ctx context.Context, conn transport.Conn, cluster string, work int, version int32) error {
	id := workID(cluster, work)
	e, err := codec.Builder{
		ID: f.newID(), Time: time.Now(), Source: source, Cluster: cluster,
		Type: codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Spec, Action: codec.UpdateRequest}.String(),
		Extensions: map[string]any{
			codec.ExtResourceID: id, codec.ExtResourceVersion: version,
			codec.ExtMetadata: fmt.Sprintf(`{"name":"w%d","namespace":%q,"uid":%q,"generation":%d}`, work, cluster, id, version),
		},
		ContentType: codec.ContentTypeJSON, Data: payload(f.bytes),
	}.Event()
	if err == nil {
		_, err = conn.Publish(ctx, e, "")
	}
	return err
}

// workID returns the id of a work, by its number in the cluster.
func workID(cluster string, work int) string { return fmt.Sprintf("%s-w%d", cluster, work) }

// payload returns the data of a work with about n bytes. Like the data of Secrets it cannot be compressed well.
func payload(n int) []byte {
	const frame = `{"manifests":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"bench","namespace":"default"},"data":{"k":%q}}]}`
	noise := make([]byte, max(0, n-len(frame))*3/4)
	_, _ = rand.Read(noise) // never fails
	return fmt.Appendf(nil, frame, base64.StdEncoding.EncodeToString(noise))
}
