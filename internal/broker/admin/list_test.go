package admin

import (
	"context"
	"fmt"
	"testing"

	"github.com/hawser-io/hawser/internal/broker/quota"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/storetest"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit/admincall"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// page requests one page. It returns the ids on the page and the token of the next page.
func (d *syncFake) page(r *hawserv1.ListWorksRequest) (ids []string, next string) {
	d.Helper()
	err := d.ListWorks(r, admincall.To(d.Context(), func(w *hawserv1.ListWorksResponse) error {
		if next != "" {
			d.Error("something follows the token of the next page")
		}
		if next = w.GetNextPageToken(); next == "" {
			ids = append(ids, w.GetCluster()+"/"+w.GetResourceId())
		}
		return nil
	}))
	if err != nil {
		d.Fatal(err)
	}
	return ids, next
}

// TestListWorks_PageByPage checks that a record that exists all the time is on exactly one page, in one order.
// Other records are created and removed between the pages.
func TestListWorks_PageByPage(t *testing.T) {
	d := newSyncFake(t)
	want := map[string]bool{}
	for i := range 2100 {
		cluster := fmt.Sprintf("c%d", i%7/3) // a seventh of the records is in c2
		d.put(cluster, fmt.Sprintf("w%04d", i))
		want[fmt.Sprintf("%s/w%04d", cluster, i)] = true
	}
	pages, last, got := 0, "", map[string]int{}
	for token := ""; ; pages++ {
		ids, next := d.page(&hawserv1.ListWorksRequest{PageToken: token})
		if len(ids) > pageRows+partRows {
			t.Errorf("a page has %d rows", len(ids))
		}
		for _, id := range ids {
			if got[id]++; id <= last {
				t.Errorf("%s comes after %s", id, last)
			}
			last = id
		}
		if next == "" {
			break
		}
		d.put("c0", fmt.Sprintf("a%d", pages), fmt.Sprintf("x%d", pages))
		d.put("b", fmt.Sprintf("a%d", pages))
		token = next
	}
	for id := range want {
		if got[id] != 1 {
			t.Errorf("%s is on %d pages", id, got[id])
		}
	}
	if pages != 2 {
		t.Errorf("%d pages have more behind them", pages)
	}
}

// TestListWorks_BoundsScannedRecordsPerPage checks that a page scans a bounded number of records, even if it shows
// few of them.
func TestListWorks_BoundsScannedRecordsPerPage(t *testing.T) {
	d := newSyncFake(t)
	for i := range 1500 {
		d.put("c1", fmt.Sprintf("w%04d", i))
	}
	for i := range 1200 { // clusters without works
		if err := storetest.Bind(t.Context(), d.cfg.Store, codec.ManifestBundles, fmt.Sprintf("a%d", i), ""); err != nil {
			t.Fatal(err)
		}
	}
	pages, token := 0, ""
	for ; pages < 10; pages++ {
		var ids []string
		if ids, token = d.page(&hawserv1.ListWorksRequest{Source: "another", PageToken: token}); len(ids) > 0 {
			t.Errorf("of another source there are %q", ids)
		}
		if token == "" {
			break
		}
	}
	if pages != 2 {
		t.Errorf("%d pages have more behind them", pages)
	}
}

// TestList_OneAtATime checks that a list waits while another one is read, until its caller gives up.
func TestList_OneAtATime(t *testing.T) {
	d := newSyncFake(t)
	d.put("c1", "w1")
	ctx, leave := context.WithCancel(t.Context())
	err := d.limiter.take(t.Context(), func() (int, error) {
		leave()
		err := d.ListClusters(&hawserv1.ListClustersRequest{}, admincall.To(ctx, func(*hawserv1.ListClustersResponse) error { return nil }))
		d.wantCode("while another list is read", err, transport.CodeUnavailable)
		return 0, nil
	})
	if err != nil {
		t.Error(err)
	}
	if ids, _ := d.page(&hawserv1.ListWorksRequest{}); len(ids) != 1 {
		t.Errorf("afterwards there are %q", ids)
	}
}

// TestListQuotas_ShowsUsageAndQuotas checks usage and quotas. Sources come first, and configured sources are
// listed even without usage.
func TestListQuotas_ShowsUsageAndQuotas(t *testing.T) {
	d := newSyncFake(t)
	d.cfg.Quotas = quota.NewTable(identity.Mapping{
		{CommonName: "x", Role: identity.Source, Name: "new", ClusterPrefixes: []string{"edge-"}, Clusters: []string{"one"}, Quota: identity.Limits{Works: 3}},
	}, identity.Limits{Works: 9, Bytes: 99})
	d.put("c1", "w1", "w2")
	d.put("c2", "w3")
	var got []string
	err := d.ListQuotas(&hawserv1.ListQuotasRequest{}, admincall.To(t.Context(), func(l *hawserv1.ListQuotasResponse) error {
		got = append(got, fmt.Sprint(l.GetSource(), l.GetCluster(), l.GetAllowedClusters(), " works ", l.GetWorks(), "/", l.GetMaxWorks(), " bytes ", l.GetBytes(), "/", l.GetMaxBytes(),
			" statuses ", l.GetStatusBytes(), "/", l.GetMaxStatusBytes(), " clusters ", l.GetClusters(), "/", l.GetMaxClusters(), " records ", l.GetRecords(), "/", l.GetMaxRecords()))
		return nil
	}))
	want := []string{
		"new[one edge-*] works 0/3 bytes 0/68719476736 statuses 0/0 clusters 0/65536 records 0/30",
		"src[] works 3/1000000 bytes 6/68719476736 statuses 0/0 clusters 2/65536 records 3/10000000",
		"c1[] works 2/9 bytes 4/99 statuses 0/99 clusters 0/0 records 2/90",
		"c2[] works 1/9 bytes 2/99 statuses 0/99 clusters 0/0 records 1/90",
	}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v\n%q, want\n%q", err, got, want)
	}
}

// TestListQuotas_PageByPage checks the pages of the list.
func TestListQuotas_PageByPage(t *testing.T) {
	d := newSyncFake(t)
	const many = 1200
	for i := range many {
		d.put(fmt.Sprintf("c%04d", i), "w1")
	}
	sources, clusters := 0, 0
	for token, pages := "", 0; pages < 10; pages++ {
		next := ""
		err := d.ListQuotas(&hawserv1.ListQuotasRequest{PageToken: token}, admincall.To(t.Context(), func(l *hawserv1.ListQuotasResponse) error {
			switch next = l.GetNextPageToken(); {
			case next != "":
			case l.GetSource() != "":
				sources++
			default:
				clusters++
			}
			return nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		if token = next; token == "" {
			break
		}
	}
	if sources != 1 || clusters != many {
		t.Errorf("%d sources, %d clusters", sources, clusters)
	}
}

// FuzzParseToken checks that each accepted token is valid.
func FuzzParseToken(f *testing.F) {
	f.Add("")
	f.Add(position{phase: 1, scope: store.Scope{DataType: codec.ManifestBundles, Cluster: "a/b"}, id: "%2F"}.token())
	f.Add("0/c1/g/v/r/")
	f.Add("0/%zz/g/v/r/i")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := parseToken(s)
		if err != nil {
			if transport.CodeOf(err) != transport.CodeInvalid {
				t.Fatal(err)
			}
			return
		}
		again, err := parseToken(p.token())
		if err != nil || again != p {
			t.Fatalf("%+v comes back as %+v, %v", p, again, err)
		}
	})
}
