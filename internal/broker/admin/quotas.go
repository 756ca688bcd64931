package admin

import (
	"cmp"
	"slices"

	ggrpc "google.golang.org/grpc"

	"github.com/hawser-io/hawser/internal/broker/quota"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// ListQuotas sends a page of quotas and usage: first of each source, then of each cluster.
func (a *Admin) ListQuotas(r *hawserv1.ListQuotasRequest, s ggrpc.ServerStreamingServer[hawserv1.ListQuotasResponse]) error {
	return list(a, r.GetPageToken(), s, func(p *part[hawserv1.ListQuotasResponse]) error {
		for phase, of := range []quota.Scope{quota.Source, quota.Cluster} {
			for _, row := range a.used(p, phase, of) {
				p.add(position{phase: phase, scope: store.Scope{Cluster: row.Name}}, a.limitsOf(of, row))
			}
			if p.full() {
				return nil
			}
		}
		p.done = true
		return nil
	})
}

// used returns the rows of a phase, as many as fit into the part. Configured and connected sources are shown
// even without usage.
func (a *Admin) used(p *part[hawserv1.ListQuotasResponse], phase int, of quota.Scope) []quota.Row {
	if phase < p.after.phase {
		return nil
	}
	after, free := "", partRows-p.looked
	if p.after.phase == phase {
		after = p.after.scope.Cluster
	}
	rows := a.cfg.Store.Rows(of, after, free)
	if of == quota.Source {
		for _, name := range slices.Concat(a.cfg.Quotas.Sources(), a.agents.Sources()) {
			if name > after && !slices.ContainsFunc(rows, func(r quota.Row) bool { return r.Name == name }) {
				rows = append(rows, quota.Row{Name: name})
			}
		}
		slices.SortFunc(rows, func(x, y quota.Row) int { return cmp.Compare(x.Name, y.Name) })
	}
	return rows[:min(free, len(rows))]
}

func (a *Admin) limitsOf(of quota.Scope, row quota.Row) *hawserv1.ListQuotasResponse {
	terms := a.cfg.Quotas.Of(row.Name)
	most := terms.Quota.Source
	l := &hawserv1.ListQuotasResponse{Source: row.Name, AllowedClusters: reachOf(terms.AllowedClusters)}
	if of == quota.Cluster {
		most = terms.Quota.Cluster
		l = &hawserv1.ListQuotasResponse{Cluster: row.Name, StatusBytes: uint64(row.Statuses), MaxStatusBytes: uint64(most.Bytes)}
	}
	l.Works, l.MaxWorks = uint64(row.Works), uint64(most.Works)
	l.Bytes, l.MaxBytes = uint64(row.Bytes), uint64(most.Bytes)
	l.Records, l.MaxRecords = uint64(row.Records), uint64(quota.RecordsPerWork*most.Works)
	l.Clusters, l.MaxClusters = uint64(row.Clusters), uint64(most.Clusters)
	return l
}

func reachOf(r identity.AllowedClusters) []string {
	all := append([]string{}, r.Clusters...)
	for _, p := range r.Prefixes {
		all = append(all, p+"*")
	}
	return all
}
