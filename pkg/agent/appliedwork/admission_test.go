package appliedwork_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/apply"
)

func TestUnrecorded(t *testing.T) {
	webhook := manifests(t, `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingWebhookConfiguration","metadata":{"name":"hook"},"webhooks":[]}`)[0]
	recorded := []appliedwork.Entry{configMap("listed", "u1"), configMap("intended", "")}
	for _, c := range []struct {
		manifest apply.Manifest
		action   apply.Action
		uid      types.UID
		want     bool
	}{
		{manifestOf(t, "new"), apply.Create, "", true},
		{manifestOf(t, "new"), apply.Unchanged, "u9", false},
		{manifestOf(t, "new"), apply.Reject, "", false},
		{manifestOf(t, "new"), apply.Update, "u9", true},
		{manifestOf(t, "intended"), apply.Create, "", false},
		{manifestOf(t, "intended"), apply.Update, "u9", false},
		{manifestOf(t, "listed"), apply.Create, "", true},
		{manifestOf(t, "listed"), apply.Update, "u1", false},
		{manifestOf(t, "listed"), apply.Update, "u2", true},
		{manifestOf(t, "listed"), apply.Recreate, "u1", true},
		{webhook, apply.Create, "", true},
		{webhook, apply.Update, "u9", false},
		{webhook, apply.Recreate, "u9", true},
	} {
		live := &unstructured.Unstructured{Object: map[string]any{}}
		live.SetUID(c.uid)
		s := apply.Step{Manifest: c.manifest, Action: c.action, Live: live}
		if got := appliedwork.Unrecorded(recorded, s); got != c.want {
			t.Errorf("%s %s with uid %q: got %t", c.action, c.manifest.Ref, c.uid, got)
		}
	}
}
