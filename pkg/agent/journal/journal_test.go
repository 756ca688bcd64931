package journal

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/pkg/codec"
)

var testBinding = Binding{ClusterUID: "uid-1", Cluster: "cluster1", HubHash: "hub", AgentID: "agent"}

// spec is the nth spec of a work.
func spec(t testing.TB, id string, n int) codec.Event {
	t.Helper()
	e := codec.Event{}
	e.SetSpecVersion(codec.SpecVersion)
	e.SetID(id + "-event")
	e.SetSource("hub")
	e.SetType("io.open-cluster-management.works.v1alpha1.manifestbundles.spec.create_request")
	e.SetTime(time.Unix(1700000000, 0))
	e.SetExtension(codec.ExtResourceID, id)
	e.SetExtension(codec.ExtClusterName, "cluster1")
	e.SetExtension(codec.ExtResourceVersion, int32(n))
	e.SetExtension(codec.ExtRevision, codec.FormatRevision(uint64(n)))
	if err := e.SetData(codec.ContentTypeJSON, map[string]any{"manifests": []any{}}); err != nil {
		t.Fatal(err)
	}
	return e
}

func cursor(n int) codec.Cursor { return codec.Cursor{Epoch: "e", Term: "t", Revision: uint64(n)} }

// holding collects what Load finds: the version of each work.
type holding map[string]int32

func (h holding) take(e codec.Event) error {
	id, err := resourceID(e)
	if err != nil {
		return err
	}
	version, _, err := codec.IntegerExtension(e, codec.ExtResourceVersion)
	h[id] = version
	return err
}

// open opens and loads.
func open(t testing.TB, c Config) (*Journal, State, holding) {
	t.Helper()
	j, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	h := holding{}
	s, err := j.Load(testBinding, h.take)
	if err != nil {
		t.Fatal(err)
	}
	return j, s, h
}

// must fails the test on an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestJournal_WhatWasPutIsLoaded(t *testing.T) {
	dir := t.TempDir()
	j, s, _ := open(t, Config{Dir: dir})
	if diff := cmp.Diff(State{}, s); diff != "" {
		t.Fatalf("an empty directory (-want +got):\n%s", diff)
	}
	must(t, j.Put(spec(t, "a", 1)))
	must(t, j.Put(spec(t, "b", 1)))
	must(t, j.Put(spec(t, "a", 2)))
	must(t, j.Put(spec(t, "c", 1)))
	must(t, j.Remove("c"))
	must(t, j.Checkpoint(cursor(7)))
	must(t, j.Put(spec(t, "b", 2)))
	reported := Reported{Sequence: "12", Accepted: map[string]string{"a": "x", "b": ""}}
	must(t, j.SaveReported(reported))
	left := map[string]string{"work": "object", "other": ""}
	must(t, j.SaveLeft(left))
	must(t, j.Reserve("14"))
	instance := j.Instance()
	must(t, j.Close())

	j, s, h := open(t, Config{Dir: dir})
	if diff := cmp.Diff(State{Cursor: cursor(7), Reported: reported, Reserved: "14", Left: left, Works: 2}, s); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(holding{"a": 2, "b": 2}, h); diff != "" {
		t.Errorf("works (-want +got):\n%s", diff)
	}
	if instance == "" || j.Instance() != instance {
		t.Errorf("instance %q became %q", instance, j.Instance())
	}
}
