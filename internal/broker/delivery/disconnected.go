package delivery

import (
	"slices"
	"time"

	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// absentEvery is the interval at which the disconnected clusters of a source are determined.
const absentEvery = time.Minute

// disconnectedNotice is the last notice about disconnected clusters that a source was sent.
type disconnectedNotice struct {
	next time.Time                   // time of the next check; zero before the first one
	sent []codec.DisconnectedCluster // nil before the first notice
}

// sendDisconnected sends a source the clusters that have been disconnected for a while, if they changed since
// the last notice. Only sources that compare get it. It follows a heartbeat.
func (t *stream) sendDisconnected() error {
	s, now := t.sub, t.cfg.Now()
	if s.part != codec.Status || now.Before(t.disconnected.next) || !s.compares() {
		return nil
	}
	first := t.disconnected.next.IsZero()
	if t.disconnected.next = now.Add(absentEvery); first {
		return nil // right after the start of the subscription other events are more urgent
	}
	all := []codec.DisconnectedCluster{}
	for _, d := range t.cfg.Store.Digests(s.scope.DataType, s.scope.Owner) {
		if c, absent := t.peers.Absent(store.Scope{DataType: s.scope.DataType, Cluster: d.Cluster}); absent {
			all = append(all, c)
		}
	}
	if t.disconnected.sent != nil && slices.Equal(all, t.disconnected.sent) {
		return nil
	}
	t.disconnected.sent = all
	free := min(pageBytes, t.cfg.MaxEventBytes) - request.AddedBytes
	for first := true; first || len(all) > 0; first = false {
		n, size := 0, 0
		for n < len(all) && size < free {
			size += rowBytes + len(all[n].Cluster) + len(all[n].Reason)
			n++
		}
		d := codec.DisconnectedClusters{Clusters: all[:n], More: n < len(all)}
		all = all[n:]
		if err := t.sendEvent(codec.NewDisconnectedClusters(t.params(), d)); err != nil {
			return err
		}
	}
	return nil
}
