package agent

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Roles are watched from when a work needs that, by the watches and queues of a
// running agent: whatever else wakes a work, it does not forget that roles
// changed.
func TestAgent_FollowsRoles(t *testing.T) {
	runAgent(t, nil, func(r *running) {
		listed := func() (n int) {
			for _, c := range r.f.TakeCalls() {
				if c.Verb == "list" && strings.HasPrefix(c.Ref.Group, "rbac.") {
					n++
				}
			}
			return n
		}
		applied := func(want string) {
			t.Helper()
			last, _ := r.b.statuses()
			got := show(last["w-1"].Status.ResourceStatus.Manifests[0].Conditions)
			if len(got) == 0 || got[0] != want {
				t.Fatalf("got %q, want %q", got, want)
			}
		}
		rights := &rig{f: r.f}
		r.b.events <- r.events.event(hubWork("w-0", "plain", 1, configMap("plain", "1")), codec.CreateRequest, nil)
		r.after(time.Minute)
		if n := listed(); n > 0 {
			t.Errorf("roles are watched although no work needs that: %d lists", n)
		}
		r.b.events <- r.events.event(as(hubWork("w-1", "web", 1, configMap("a", "1"))), codec.CreateRequest, nil)
		r.after(2 * time.Second)
		applied(deniedApply(" configmaps", "a"))
		if n := listed(); n != 4 {
			t.Errorf("%d lists of roles and bindings, want one of each", n)
		}
		rights.grant("maps", "", "configmaps", everyVerb)
		r.after(15 * time.Second)
		applied(manifestApplied)
		r.after(2 * settleTime)
		r.f.TakeCalls()
		r.after(30 * time.Minute)
		for _, c := range r.f.TakeCalls() {
			t.Errorf("at rest: %s", c)
		}

		// The object changes at the same moment, which wakes the work before the look
		// at the roles is due.
		rights.revoke("maps")
		r.f.Edit(rights.ref("ConfigMap", "a"), func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{"a": "b"}) })
		r.after(15 * time.Second)
		applied(deniedApply(" configmaps", "a"))
	})
}
