package histories

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"time"

	"github.com/hawser-io/hawser/pkg/transport/grpc"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
	"github.com/hawser-io/hawser/test/histories/judge"
)

const (
	// readPace is the pace of reads, and readWithin bounds one. The last read is bounded by lastWithin: a connection
	// to the database that was cut off during the last fault may cost a broker its timeout.
	readPace, readWithin, lastWithin = 150 * time.Millisecond, 3 * time.Second, 30 * time.Second
)

// readAll reads the works of a cluster at a broker, at a pace, until ctx ends. A failed read has no effect.
func (f *fleet) readAll(ctx context.Context) error {
	tick := time.NewTicker(readPace)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			cluster := clusters[rand.IntN(len(clusters))]
			_ = f.read(ctx, f.anyReplica().front.addr, cluster) // the broker may be down
		case <-ctx.Done():
			return nil
		}
	}
}

// read records the works of a cluster at a broker, and those that it does not have.
func (f *fleet) read(ctx context.Context, addr, cluster string) error {
	from := f.trace.now()
	missing := map[string]bool{}
	for _, s := range f.sources {
		for _, id := range s.current(cluster, from) {
			missing[id] = true
		}
	}
	rows, err := list(ctx, readWithin, addr, cluster)
	if err != nil || len(rows) == 0 { // a broker that does not know the cluster yet returns nothing
		return err
	}
	for _, r := range rows {
		delete(missing, r.GetResourceId())
		f.trace.add(judge.Event{Kind: judge.Read, From: from, Client: "reader", Cluster: cluster, Work: r.GetResourceId(), Version: r.GetVersion(), Deleted: deleted(r), Revision: r.GetRevision()})
	}
	for id := range missing {
		f.trace.add(judge.Event{Kind: judge.Read, From: from, Client: "reader", Cluster: cluster, Work: id})
	}
	return nil
}

func deleted(r *hawserv1.ListWorksResponse) bool {
	return r.GetState() != hawserv1.WorkState_WORK_STATE_LIVE
}

// readStore records all works of the store.
func (f *fleet) readStore(ctx context.Context) error {
	for _, cluster := range clusters {
		rows, err := list(ctx, lastWithin, f.replicas[0].addr, cluster)
		if err != nil {
			return err
		}
		for _, r := range rows {
			f.trace.add(judge.Event{Kind: judge.Stored, Cluster: cluster, Work: r.GetResourceId(), Version: r.GetVersion(), Deleted: deleted(r), Revision: r.GetRevision()})
		}
	}
	return nil
}

// list returns the works of a cluster at a broker.
func list(ctx context.Context, within time.Duration, addr, cluster string) (rows []*hawserv1.ListWorksResponse, err error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	d, err := grpc.NewDialer(grpc.Options{Target: addr, Insecure: true, DialTimeout: within})
	if err != nil {
		return nil, err
	}
	c, err := d.Connect(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	admin := hawserv1.NewAdminServiceClient(c.Calls())
	for page := ""; ; {
		stream, err := admin.ListWorks(ctx, &hawserv1.ListWorksRequest{Cluster: cluster, PageToken: page})
		if err != nil {
			return nil, err
		}
		page = ""
		for {
			r, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, err
			}
			if r.GetNextPageToken() != "" {
				page = r.GetNextPageToken()
			}
			if r.GetResourceId() != "" {
				rows = append(rows, r)
			}
		}
		if page == "" {
			return rows, nil
		}
	}
}
