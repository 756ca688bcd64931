package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	workv1 "open-cluster-management.io/api/work/v1"
	"sigs.k8s.io/yaml"
)

func TestCountRequests(t *testing.T) {
	const log = `{"verb":"get","requestURI":"/api/v1/namespaces/n/configmaps/a","user":{"username":"system:serviceaccount:hawser:hawser-agent"},"objectRef":{"resource":"configmaps","namespace":"n","name":"a"}}
{"verb":"get","requestURI":"/api/v1/namespaces/n/configmaps/b","user":{"username":"system:serviceaccount:hawser:hawser-agent"},"objectRef":{"resource":"configmaps"}}
{"verb":"get","requestURI":"/apis/x","user":{"username":"system:serviceaccount:hawser:hawser-agent"},"objectRef":{"resource":"appliedmanifestworks","subresource":"status"}}
{"verb":"watch","requestURI":"/api/v1/configmaps?watch=true","user":{"username":"system:serviceaccount:hawser:hawser-agent"},"objectRef":{"resource":"configmaps"}}
{"verb":"get","requestURI":"/apis/apps/v1?x=y","user":{"username":"system:serviceaccount:hawser:hawser-agent"}}
{"verb":"get","requestURI":"/apis/apps/v1","user":{"username":"another-user"}}
{"verb":"create","requestURI":"/apis/x","user":{"username":"system:serviceaccount:hawser:hawser-agent"},"objectRef":{"resource":"secrets"},"requestReceivedTimestamp":"2026-01-02T03:04:05.5Z","stageTimestamp":"2026-01-02T03:04:08Z"}
{"verb":"create","requestURI":"/apis/x","user":{"username":"system:serviceaccount:hawser:hawser-agent"},"objectRef":{"resource":"secrets"},"requestReceivedTimestamp":"2026-01-02T03:04:05Z","stageTimestamp":"2026-01-02T03:04:06Z"}
{"verb":"update","requestURI":"/apis/x","user":{"username":"system:serviceaccount:hawser:hawser-agent"},"objectRef":{"resource":"leases"},"requestReceivedTimestamp":"2026-01-02T03:00:00Z","stageTimestamp":"2026-01-02T03:10:00Z"}
`
	got, writing, err := countRequests([]byte(log))
	if err != nil {
		t.Fatal(err)
	}
	want := requests{"get configmaps": 2, "get appliedmanifestworks/status": 1, "create secrets": 2, "update leases": 1, "get /apis/apps/v1": 1}
	if d := cmp.Diff(want, got); d != "" || got.total() != 7 || writing != 3*time.Second {
		t.Errorf("(-want +got)\n%s", d)
	}
	if _, _, err := countRequests([]byte("{\n")); err == nil {
		t.Error("a line that is no JSON: accepted")
	}
}

func TestSumOf(t *testing.T) {
	const text = `# HELP m_total x
m_total{result="done"} 3
m_total{result="failed",x="y"} 4
m_total_more 100
m 7
`
	for _, c := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"m_total", nil, 7}, {"m_total", []string{`result="done"`}, 3}, {"m", nil, 7}, {"none", nil, 0},
	} {
		if got, err := sumOf(text, c.name, c.labels...); got != c.want || err != nil {
			t.Errorf("%s %q: %v, %v", c.name, c.labels, got, err)
		}
	}
}

// TestPolledReads: the computed value is about four thousand reads per minute.
func TestPolledReads(t *testing.T) {
	if n := polledReads(); n < 4100 || n > 4200 {
		t.Errorf("%v reads a minute", n)
	}
	if n := hourlyReads(); n != 16 {
		t.Errorf("%v reads a minute", n)
	}
}

func TestMixedWork(t *testing.T) {
	var w workv1.ManifestWork
	if err := yaml.UnmarshalStrict(fmt.Appendf(nil, mixed, workOf(7), spaceOf(27), cluster), &w); err != nil {
		t.Fatal(err)
	}
	if n := len(w.Spec.Workload.Manifests); n != manifestsPerWork || w.Name != "mixed-007" || w.Namespace != cluster {
		t.Errorf("%d manifests of %s/%s", n, w.Namespace, w.Name)
	}
}

func TestResults_GoalsOfMeasuredRows(t *testing.T) {
	r := results{parts: options{only: partWorks}.measures, cold: sample{5}, writing: sample{4}, bare: sample{3}, repaired50: sample{100}, reported50: sample{600}, worksMemory: 90, restRequests: 5}
	if gs := r.goals(); len(gs) != 7 {
		t.Fatalf("%d goals", len(gs))
	}
	if err := r.check(); err == nil || err.Error() != "changed status → value on the hub p50, ms: 600.00, want ≤ 500.00" {
		t.Errorf("got %v", err)
	}
}
