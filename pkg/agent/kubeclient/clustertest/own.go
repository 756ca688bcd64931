package clustertest

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// own checks dry runs of the agent's own writes.
func (s suite) own(t *testing.T) {
	object := Object("v1", "ConfigMap", s.ns, "own", "data", map[string]any{"k": "v"})
	at := s.ref(configMaps, "own")
	create := kubeclient.Write{Verb: kubeclient.Create, Ref: at, Object: object}
	update, remove := kubeclient.Write{Verb: kubeclient.Update, Ref: at}, kubeclient.Write{Verb: kubeclient.Delete, Ref: at}
	patch := kubeclient.Write{Verb: kubeclient.Patch, Ref: at, Body: []byte(`{"data":{"k":"w"}}`)}
	for range 2 { // a dry run changes nothing, so a second one has the same result
		if err := s.c.DryRunOwn(t.Context(), create); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range []kubeclient.Write{update, patch, remove} {
		want(t, "NotFound", apierrors.IsNotFound, s.c.DryRunOwn(t.Context(), w))
	}
	before := s.mustCreate(t, configMaps, object)
	for _, w := range []kubeclient.Write{update, patch, remove} {
		if err := s.c.DryRunOwn(t.Context(), w); err != nil {
			t.Errorf("%s: %v", w.Verb, err)
		}
	}
	if after := s.mustGet(t, at); after.GetResourceVersion() != before.GetResourceVersion() {
		t.Error("a rehearsal wrote something")
	}
}
