package agent

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-io/hawser/pkg/agent/drift"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// meeting is a Client whose creations of ConfigMaps wait for each other, so that they must be concurrent. It also
// guards the Tracker of the rig, which is not safe for concurrent use.
type meeting struct {
	kubeclient.Client
	Tracker
	mu     sync.Mutex
	absent int
	all    chan struct{} // closed when no ConfigMap is absent
	order  []string
}

func (m *meeting) Create(ctx context.Context, gvr schema.GroupVersionResource, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if gvr.Resource == "configmaps" {
		m.mu.Lock()
		if m.absent--; m.absent == 0 {
			close(m.all)
		}
		m.mu.Unlock()
		<-m.all
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.order = append(m.order, gvr.Resource)
	return m.Client.Create(ctx, gvr, o)
}

func (m *meeting) RecordWrite(key string, ref kubeclient.Ref, s drift.Signature) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.Tracker.RecordWrite(key, ref, s)
}

// TestCore_WritesObjectsOfOneRankConcurrently: the ranks follow each other.
func TestCore_WritesObjectsOfOneRankConcurrently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // it fails at once if the creations wait forever
		r := newRig(t)
		m := &meeting{absent: 3, all: make(chan struct{})}
		r.configure = func(c *CoreConfig) {
			m.Client, m.Tracker = c.Client, c.Tracker
			c.Client, c.Tracker, c.InFlight = m, m, 3
		}
		r.restart()
		r.apply(hubWork("w-1", "web", 1,
			configMap("a", "1"), configMap("b", "1"),
			`{"apiVersion":"v1","kind":"Service","metadata":{"name":"s","namespace":"default"},"spec":{}}`,
			`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"first"}}`, configMap("c", "1"),
		))
		got := slices.DeleteFunc(m.order, func(resource string) bool { return resource == "appliedmanifestworks" })
		if want := "namespaces configmaps configmaps configmaps services"; strings.Join(got, " ") != want {
			t.Errorf("created %v, want %s", got, want)
		}
		r.expectListed("web", "configmaps default/a", "configmaps default/b", "configmaps default/c", "namespaces /first", "services default/s")
	})
}

func TestStage(t *testing.T) {
	at := func(kind, name string) planned {
		var p planned
		p.Meta.Kind, p.Ref.Resource, p.Ref.Name, p.Resolved = kind, strings.ToLower(kind), name, true
		p.Object = &unstructured.Unstructured{}
		return p
	}
	for name, c := range map[string]struct {
		steps []planned
		want  int
	}{
		"one rank":                       {[]planned{at("Secret", "a"), at("ConfigMap", "a"), at("Service", "a")}, 2},
		"a role before its binding":      {[]planned{at("Role", "a"), at("RoleBinding", "a")}, 1},
		"kinds without a rank":           {[]planned{at("Rope", "a"), at("Rope", "b"), at("Splice", "a")}, 2},
		"one object twice":               {[]planned{at("Secret", "a"), at("Secret", "b"), at("Secret", "a")}, 2},
		"a definition before its object": {[]planned{at("CustomResourceDefinition", "a"), at("Rope", "a")}, 1},
	} {
		if got := stage(c.steps); got != c.want {
			t.Errorf("%s: %d of %d steps, want %d", name, got, len(c.steps), c.want)
		}
	}
}
