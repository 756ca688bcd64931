package registration

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/hawser-io/hawser/internal/earliest"
	"github.com/hawser-io/hawser/pkg/codec"
)

// formerObject is an object as a hub of commit 0647681f has it: the files are those of package clustercontroller.
func formerObject(t *testing.T, file string) (o obj) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err == nil {
		err = utiljson.Unmarshal(b, &o)
	}
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// TestFormer_Objects: a ManagedCluster keeps its requester and the earliest issue time that it requests. Agents
// see that time, and no other mark. A CSR keeps its requester.
func TestFormer_Objects(t *testing.T) {
	c := kept(t, codec.ManagedClusters, formerObject(t, "../clustercontroller/testdata/former/member.json"))
	const account = "system:serviceaccount:open-cluster-management:agent-registration-bootstrap"
	if want := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC); c.account != account || !c.rotate.Equal(want) || !c.accepted() {
		t.Errorf("account %q, rotate %v, accepted %t", c.account, c.rotate, c.accepted())
	}
	var shown unstructured.Unstructured
	if err := json.Unmarshal(c.json, &shown.Object); err != nil {
		t.Fatal(err)
	}
	if a := shown.GetAnnotations(); len(a) != 1 || a[earliest.RotateAnnotation] != "2026-01-02T15:04:05Z" {
		t.Errorf("agents see the annotations %v", a)
	}
	r := kept(t, codec.SigningRequests, formerObject(t, "../clustercontroller/testdata/former/request.json"))
	if want := "system:open-cluster-management:east:agent"; r.requester != want || r.cluster != "east" || !r.undecided {
		t.Errorf("requester %q, cluster %q, undecided %t", r.requester, r.cluster, r.undecided)
	}
}

// TestFormer_EarliestIssues: the broker receives the times that a former hawser wrote on the hub. A time that
// waits for the end of a cluster is valid once the cluster is gone.
func TestFormer_EarliestIssues(t *testing.T) {
	data, _ := formerObject(t, "../../earliest/testdata/former/hawser-earliest-issue.json")["data"].(obj)
	inBubble(t, nil, func(b *bench) {
		b.keeps(data)
		b.wait(time.Minute)
		at := time.Date(1999, 1, 2, 15, 4, 5, 0, time.UTC)
		b.wantFrom("denied", at)
		b.wantFrom("east", at.Add(2*time.Hour))
		e, err := earliest.Parse(b.kept("detached"))
		if err != nil || e.Until != "" || !e.At.After(at.Add(time.Hour)) {
			t.Errorf("the hub keeps %q", b.kept("detached"))
		}
		b.wantFrom("detached", e.At)
	})
}
