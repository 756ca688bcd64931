package delivery

import (
	"slices"
	"time"

	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// absentEvery is how often it is looked at which clusters of a source have no agent.
const absentEvery = time.Minute

// disconnectedNotice is what a source was told of clusters without an agent.
type disconnectedNotice struct {
	next time.Time                   // when it is looked at again; zero before the first time
	sent []codec.DisconnectedCluster // nil before it was told
}

// sendDisconnected tells a source that compares which of its clusters have had no agent for a while, if it has not been
// told so. It comes with a heartbeat.
func (t *stream) sendDisconnected() error {
	s, now := t.sub, t.cfg.Now()
	if s.part != codec.Status || now.Before(t.disconnected.next) || !s.compares() {
		return nil
	}
	first := t.disconnected.next.IsZero()
	if t.disconnected.next = now.Add(absentEvery); first {
		return nil // who has just subscribed has other things to hear
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
