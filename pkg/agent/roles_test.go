package agent

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Roles are watched as soon as a work needs that, by the watches and queues of a running agent. Other events
// that wake a work do not hide that roles changed.
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
		r.b.events <- r.events.event(hubWork("w-0", "simple", 1, configMap("simple", "1")), codec.CreateRequest, nil)
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
		r.after(2 * rolesDelay)
		r.f.TakeCalls()
		r.after(30 * time.Minute)
		for _, c := range r.f.TakeCalls() {
			t.Errorf("without a change: %s", c)
		}

		// The object changes at the same moment. That wakes the work before the check of the roles is due.
		rights.revoke("maps")
		r.f.Edit(rights.ref("ConfigMap", "a"), func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{"a": "b"}) })
		r.after(15 * time.Second)
		applied(deniedApply(" configmaps", "a"))
	})
}

// A right is removed while roles are listed for the first time.
//
// Scenario:
//
//	t1: the executor is checked and has the right.
//	t2: an administrator removes it.
//	t3: the bindings are listed, without that one.
//
// Result: no event shows the change, so the first list counts as one.
func TestAgent_RightTakenAwayBeforeRolesAreListed(t *testing.T) {
	var listable atomic.Bool
	runAgent(t, func(r *running) {
		r.f.Refuse = func(c clustertest.Call) error {
			if c.Verb == "list" && c.Ref.Resource == "rolebindings" && !listable.Load() {
				return apierrors.NewServiceUnavailable("not yet")
			}
			return nil
		}
	}, func(r *running) {
		rights := &rig{f: r.f}
		rights.grant("maps", "", "configmaps", everyVerb)
		r.b.events <- r.events.event(as(hubWork("w-1", "web", 1, configMap("a", "1"))), codec.CreateRequest, nil)
		r.after(100 * time.Millisecond)
		if r.f.Look(rights.ref("ConfigMap", "a")) == nil {
			t.Fatal("it was not applied")
		}
		rights.revoke("maps")
		listable.Store(true)
		r.after(5 * time.Second)
		last, _ := r.b.statuses()
		if got := show(last["w-1"].Status.ResourceStatus.Manifests[0].Conditions); !slices.Contains(got, deniedApply(" configmaps", "a")) {
			t.Errorf("got %q", got)
		}
	})
}
