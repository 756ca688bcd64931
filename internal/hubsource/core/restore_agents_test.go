package core

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// The agents report again the statuses that a store lost.

func (r *realm) agentsBehind() []store.Meta {
	var behind []store.Meta
	r.scan("", func(m store.Meta) {
		if m.State != store.ConfirmedTombstone && r.agents[m.Key] != m.SpecRevision {
			behind = append(behind, m)
		}
	})
	return behind
}

func (r *realm) agent(m store.Meta) {
	r.sequence++
	deleted := m.State == store.Tombstone
	e, err := r.status(m, sequence(r.sequence), deleted)
	if err != nil {
		r.t.Fatal(err)
	}
	b, err := codec.Marshal(e)
	if err != nil {
		r.t.Fatal(err)
	}
	env, incoming, err := codec.Ingest(b)
	if err != nil {
		r.t.Fatal(err)
	}
	normal, err := incoming.Normalized()
	if err != nil {
		r.t.Fatal(err)
	}
	r.agents[m.Key] = m.SpecRevision
	o := r.commit(store.Op{Kind: store.PutStatus, Key: m.Key, Action: env.Type.Action, Version: env.Version,
		Sequence: env.SequenceID, StatusHash: env.StatusHash, Deleted: deleted, Event: normal, At: r.now})
	if o.Result == store.ResendSpec {
		delete(r.agents, m.Key)
	}
}

func (r *realm) status(m store.Meta, sequence string, deleted bool) (codec.Event, error) {
	status := applied(m.Version)
	status.Conditions[0].Message = fmt.Sprintf("%s %x", sequence, m.Tag[:4])
	spec := manifestwork.Ref{ResourceID: m.ResourceID, Cluster: m.Cluster, Name: m.Name, Generation: m.Version}
	return manifestwork.EncodeStatus(spec, status, manifestwork.StatusParams{
		ID: r.id(), Now: r.now, Source: "agent", OriginalSource: "hub", Action: codec.UpdateRequest, SequenceID: sequence, Deleted: deleted,
	})
}

// approve is an operator who approves all withheld deletions.
func (r *realm) approve() bool {
	done := false
	for _, cluster := range slices.Sorted(maps.Keys(r.withheld)) {
		for _, w := range r.withheld[cluster] {
			k := store.Key{DataType: manifestBundles, Cluster: cluster, ResourceID: w.ResourceID}
			rec, err := r.store.Get(context.Background(), k)
			if err == nil && rec.State == store.Live && rec.SpecRevision == w.Revision {
				done = true
				r.commit(store.Op{Kind: store.PutSpec, Key: k, Owner: "hub", Name: rec.Name, Action: codec.DeleteRequest, Version: rec.Version,
					Tag: codec.TagOf(true, rec.Version, "", nil), Deleting: true, DeletedAt: r.now, IfRevision: w.Revision})
			}
		}
	}
	r.withheld = map[string][]codec.WithheldDeletion{}
	return done
}
