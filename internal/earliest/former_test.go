package earliest

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// formerEntries is the ConfigMap of earliest issue times as hawser detach, hawser reject cluster and hawser
// rotate cluster of commit 0647681f wrote it. It was written by hand from [Entry.String] of that commit.
const formerEntries = "testdata/former/hawser-earliest-issue.json"

// TestFormer_Entries: earliest issue times that a former hawser wrote are read with the same values, and
// written in the same form.
func TestFormer_Entries(t *testing.T) {
	b, err := os.ReadFile(formerEntries)
	if err != nil {
		t.Fatal(err)
	}
	var m corev1.ConfigMap
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	if m.Namespace != Namespace || m.Name != ConfigMap {
		t.Errorf("it is %s/%s, and %s/%s is read", m.Namespace, m.Name, Namespace, ConfigMap)
	}
	at := time.Date(1999, 1, 2, 15, 4, 5, 0, time.UTC)
	want := map[string]Entry{"denied": {At: at}, "detached": {At: at.Add(time.Hour), Until: "uid-of-managedcluster"}, "east": {At: at.Add(2 * time.Hour)}}
	got := map[string]Entry{}
	for cluster, text := range m.Data {
		e, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", cluster, err)
		}
		if e.String() != text {
			t.Errorf("%s: %q is written as %q", cluster, text, e)
		}
		got[cluster] = e
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
