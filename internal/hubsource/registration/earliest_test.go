package registration

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-io/hawser/internal/earliest"
	"github.com/hawser-io/hawser/internal/ocm"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// keeps writes these entries to the hub, as hawser does.
func (b *bench) keeps(entries obj) {
	b.hub.put("configmaps", earliest.Namespace, earliest.ConfigMap, obj{"data": entries})
	b.wait(time.Second)
}

// kept returns the entry of a cluster on the hub.
func (b *bench) kept(cluster string) string {
	data, _ := b.hub.get("configmaps", earliest.Namespace, earliest.ConfigMap)["data"].(obj)
	text, _ := data[cluster].(string)
	return text
}

// wantFrom asserts that the broker received this earliest issue time of a cluster; zero: none.
func (b *bench) wantFrom(cluster string, at time.Time) {
	b.Helper()
	b.broker.mu.Lock()
	defer b.broker.mu.Unlock()
	if got := b.broker.earliest[cluster]; !got.Equal(at) {
		b.Errorf("certificates of %s count from %v on, want %v", cluster, got, at)
	}
}

func text(at time.Time) string { return earliest.Entry{At: at}.String() }

// TestServer_EarliestIssues: the broker receives the times that hawser wrote on the hub, on each subscription.
// A value that is no time, or one ahead of the clock, is ignored. A restored hub does not lower a time.
func TestServer_EarliestIssues(t *testing.T) {
	inBubble(t, nil, func(b *bench) {
		t1 := time.Now().Truncate(time.Second).UTC()
		t2 := t1.Add(time.Second)
		b.keeps(obj{cluster1: text(t2), "c2": "soon", "c3": text(t1.Add(time.Hour))})
		b.wantFrom(cluster1, t2)
		b.wantFrom("c2", time.Time{})
		b.wantFrom("c3", time.Time{})
		b.keeps(obj{cluster1: text(t1)})
		b.hub.remove("configmaps", earliest.Namespace, earliest.ConfigMap)
		b.dialer.Cut()
		b.dialer.Restore()
		b.wait(time.Minute)
		b.wantFrom(cluster1, t2)

		b.hub.put(hubClusters, "", cluster1, obj{"spec": obj{"hubAcceptsClient": true}})
		b.wait(time.Second)
		request := parsed(t, createdCSR, cluster1, csrOf(requestPEM(t, nil), nil))
		request.Issued = timestamppb.New(t1)
		if _, refused := b.request(request); refused != "Forbidden" {
			t.Errorf("a renewal with a certificate from before is refused with %q", refused)
		}
		request.Issued = timestamppb.New(t2)
		if _, refused := b.request(request); refused != "" {
			t.Errorf("a renewal with a certificate from after is refused with %q", refused)
		}
	})
}

// TestServer_EarliestIssues_OfADetachedCluster: from t3 on, certificates from before t3 are rejected, and the
// hub keeps that.
//
// Scenario:
//
//	t1: hawser detach records its begin.
//	t2: the cluster deletes the objects of its works, and renews its certificate.
//	t3: its ManagedCluster is gone, or another one has its name.
func TestServer_EarliestIssues_OfADetachedCluster(t *testing.T) {
	for name, another := range map[string]bool{"gone": false, "another": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(b *bench) {
				b.hub.put(hubClusters, "", cluster1, obj{"spec": obj{"hubAcceptsClient": true}})
				uid, _ := b.hub.get(hubClusters, "", cluster1)["metadata"].(obj)["uid"].(string)
				t1 := time.Now().Truncate(time.Second)
				b.keeps(obj{cluster1: earliest.Entry{At: t1, Until: uid}.String()})
				b.wait(time.Hour)
				b.wantFrom(cluster1, time.Time{})
				b.hub.remove(hubClusters, "", cluster1)
				if another {
					b.hub.put(hubClusters, "", cluster1, obj{"spec": obj{"hubAcceptsClient": true}})
				}
				b.wait(2 * time.Second)
				e, err := earliest.Parse(b.kept(cluster1))
				if err != nil || e.Until != "" || e.At.Before(t1.Add(time.Hour)) || e.At.After(time.Now()) {
					t.Errorf("the hub keeps %q", b.kept(cluster1))
				}
				b.wantFrom(cluster1, e.At)
			})
		})
	}
}

// TestServer_Rotates: from t3 on, no certificate from before t1 is valid.
//
// Scenario:
//
//	t1: hawser rotate requests a certificate from after t1.
//	t2: the agent connects with the former one, which is valid.
//	t3: it connects with one from after t1.
func TestServer_Rotates(t *testing.T) {
	inBubble(t, nil, func(b *bench) {
		t1 := time.Now().Truncate(time.Second)
		b.keeps(obj{})
		b.hub.put(hubClusters, "", cluster1, obj{
			"metadata": obj{"annotations": obj{earliest.RotateAnnotation: text(t1)}}, "spec": obj{"hubAcceptsClient": true},
		})
		b.hub.put(hubLeases, cluster1, ocm.LeaseName, obj{"spec": obj{}})
		b.wait(time.Second)
		for _, c := range []struct {
			issued time.Duration
			want   time.Time
		}{{-time.Second, time.Time{}}, {0, t1}, {-time.Second, t1}} {
			b.broker.send(&hawserv1.RegistrationRequest{Request: &hawserv1.RegistrationRequest_Renewals{Renewals: &hawserv1.LeaseRenewals{Renewals: []*hawserv1.LeaseRenewal{
				{Cluster: cluster1, Age: durationpb.New(0), Issued: timestamppb.New(t1.Add(c.issued))},
			}}}})
			b.wait(2 * time.Second)
			b.wantFrom(cluster1, c.want)
		}
		if b.kept(cluster1) != text(t1) {
			t.Errorf("the hub keeps %q", b.kept(cluster1))
		}
	})
}

// TestServer_RotatesOnceMore: the rotation ends at once, not at the next Lease.
//
// Scenario:
//
//	t1: an agent connects with a certificate from t1.
//	t2: its ManagedCluster requests one from t1 on. The agent has it and does not reconnect.
func TestServer_RotatesOnceMore(t *testing.T) {
	inBubble(t, nil, func(b *bench) {
		t1 := time.Now().Truncate(time.Second)
		b.keeps(obj{})
		b.hub.put(hubClusters, "", cluster1, obj{"spec": obj{"hubAcceptsClient": true}})
		b.hub.put(hubLeases, cluster1, ocm.LeaseName, obj{"spec": obj{}})
		b.wait(time.Second)
		b.broker.send(&hawserv1.RegistrationRequest{Request: &hawserv1.RegistrationRequest_Renewals{Renewals: &hawserv1.LeaseRenewals{Renewals: []*hawserv1.LeaseRenewal{
			{Cluster: cluster1, Age: durationpb.New(0), Issued: timestamppb.New(t1)},
		}}}})
		b.wait(time.Second)
		b.wantFrom(cluster1, time.Time{})
		for _, c := range []struct {
			asks time.Duration
			want time.Time
		}{{time.Second, time.Time{}}, {0, t1}} {
			b.hub.change(hubClusters, "", cluster1, func(o obj) {
				o["metadata"].(obj)["annotations"] = obj{earliest.RotateAnnotation: text(t1.Add(c.asks))}
			})
			b.wait(time.Second)
			b.wantFrom(cluster1, c.want)
		}
	})
}
