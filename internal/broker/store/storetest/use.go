package storetest

import (
	"cmp"
	"slices"

	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/broker/quota"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
)

var _ quota.UsageReader = (*Model)(nil)

// use returns the sum of the use of the selected records.
func (l *Model) use(of func(e *Entry) bool) (u quota.Amount) {
	on := map[string]bool{}
	for i := range l.records {
		e := &l.records[i]
		if !of(e) {
			continue
		}
		u.Records++
		u.Bytes += int64(len(e.Spec) + len(e.Queued))
		u.Statuses += int64(len(e.Status))
		if e.State != store.ConfirmedTombstone {
			u.Works++
			on[e.Cluster] = true
		}
	}
	u.Clusters = int64(len(on))
	return u
}

// Source implements [quota.UsageReader].
func (l *Model) Source(name string) quota.Amount {
	return l.use(func(e *Entry) bool { return e.Owner == name })
}

// Cluster implements [quota.UsageReader].
func (l *Model) Cluster(name string) quota.Amount {
	u := l.use(func(e *Entry) bool { return e.Key.Cluster == name })
	u.Clusters = 0
	return u
}

// Works implements [quota.UsageReader].
func (l *Model) Works(source, cluster string) int64 {
	return l.use(func(e *Entry) bool { return e.Owner == source && e.Key.Cluster == cluster }).Works
}

// Rows is Rows of [store.Store] without a limit.
func (l *Model) Rows(of quota.Scope) (rows []quota.Row) {
	names := map[string]quota.Amount{}
	for _, e := range l.records {
		if of == quota.Source {
			names[e.Owner] = l.Source(e.Owner)
		} else {
			names[e.Key.Cluster] = l.Cluster(e.Key.Cluster)
		}
	}
	for name, u := range names {
		rows = append(rows, quota.Row{Name: name, Amount: u})
	}
	slices.SortFunc(rows, func(a, b quota.Row) int { return cmp.Compare(a.Name, b.Name) })
	return rows
}

// drawQuota gives some ops a small quota, and some a cluster where their source may have no works.
func drawQuota(t *rapid.T, o *store.Op) {
	if o.Kind != store.PutSpec && o.Kind != store.PutStatus || rapid.Bool().Draw(t, "unlimited") {
		return
	}
	few := func(label string, most int64) int64 { return rapid.Int64Range(0, most).Draw(t, label) }
	o.Quota = &quota.Quota{
		Source:  identity.Limits{Works: few("works", 5), Bytes: few("bytes", 40), Clusters: few("clusters", 2)},
		Cluster: identity.Limits{Works: few("works of a cluster", 5), Bytes: few("bytes of a cluster", 40)},
	}
	o.OutOfScope = o.Deleting && rapid.IntRange(0, 3).Draw(t, "beyond") == 0
}

// compareUse compares the quota use, page by page.
func compareUse(t *rapid.T, b *bench, l *Model) {
	for _, of := range []quota.Scope{quota.Source, quota.Cluster} {
		var got []quota.Row
		for after := ""; ; {
			page := b.Rows(of, after, 2)
			if len(page) == 0 {
				break
			}
			got = append(got, page...)
			after = page[len(page)-1].Name
		}
		if d := delta(l.Rows(of), got); d != "" {
			t.Fatalf("use by %s (-model +store):\n%s", of, d)
		}
	}
}
