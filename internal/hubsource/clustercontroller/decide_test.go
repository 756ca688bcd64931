package clustercontroller

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "open-cluster-management.io/api/cluster/v1"
)

// reported returns the decisions in short form.
func reported(e effects) string {
	var all []string
	send := func(yes bool, format string, args ...any) {
		if yes {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	send(e.namespace, "namespace")
	if n := e.change; n != nil {
		send(n.finalizers != nil, "finalizers=%s", strings.Join(n.finalizers, ","))
		var keys []string
		for _, t := range n.taints {
			keys = append(keys, t.Key[strings.LastIndex(t.Key, "/")+1:])
		}
		send(n.taints != nil, "taints=%s", strings.Join(keys, ","))
		send(n.claim == NoKey, "deny")
		send(n.claim != "" && n.claim != NoKey, "claim")
		send(n.member, "member")
		send(n.accept, "accept")
	}
	send(e.lease, "lease")
	send(e.addons != nil, "addons")
	for _, o := range e.remove {
		send(true, "remove %s", o.name)
	}
	for _, c := range e.conditions {
		send(true, "%s=%s/%s", c.Type, c.Status, c.Reason)
	}
	for _, v := range e.decisions {
		send(true, "%s %s", v.action, v.csr.Name)
	}
	send(e.release, "release")
	send(e.after > 0, "after %s", e.after)
	return strings.Join(all, "; ")
}

const finalizer = clusterv1.ManagedClusterFinalizer

func TestDecide_Member(t *testing.T) {
	const unreachable, unavailable = clusterv1.ManagedClusterTaintUnreachable, clusterv1.ManagedClusterTaintUnavailable
	seen := func(ago time.Duration, watched bool) *renewal {
		return &renewal{written: start.Add(-time.Hour), seen: start.Add(-ago), watched: watched}
	}
	lastSeen := seen(time.Minute, false)
	slow := func(c *clusterv1.ManagedCluster) { c.Spec.LeaseDurationSeconds = 10 }
	unset := func(c *clusterv1.ManagedCluster) { c.Spec.LeaseDurationSeconds = 0 }
	foreign := func(c *clusterv1.ManagedCluster) {
		c.Finalizers = append(c.Finalizers, "example.com/other")
		c.Spec.Taints = append(c.Spec.Taints, clusterv1.Taint{Key: "example.com/gpu", Effect: clusterv1.TaintEffectPreferNoSelect})
	}
	softly := func(c *clusterv1.ManagedCluster) {
		c.Spec.Taints = append(c.Spec.Taints, clusterv1.Taint{Key: unreachable, Effect: clusterv1.TaintEffectPreferNoSelect})
	}
	clock := func(status metav1.ConditionStatus, reason string) func(*clusterv1.ManagedCluster) {
		return conditions(clusterv1.ManagedClusterConditionClockSynced, status, reason)
	}
	type changes = []func(*clusterv1.ManagedCluster)
	for _, c := range []struct {
		name    string
		cluster changes
		renewal *renewal
		want    string
	}{
		{"requests to join", nil, nil, "taints=unreachable"},
		{"waits", changes{tainted(unreachable)}, nil, ""},
		{"is accepted", changes{accepts, tainted(unreachable)}, nil, "namespace; finalizers=" + finalizer + "; lease; HubAcceptedManagedCluster=True/HubClusterAdminAccepted"},
		{"claims to be accepted, by a condition", changes{isAccepted, tainted(unreachable)}, nil, "deny; HubAcceptedManagedCluster=False/HubClusterAdminDenied"},
		{"unchanged", changes{accepts, finalized, isAccepted, isAvailable}, lastSeen, "after 4m0s"},
		{"unchanged, without a period", changes{accepts, unset, finalized, isAccepted, isAvailable}, lastSeen, "after 4m0s"},
		{"has lost its Lease", changes{accepts, finalized, isAccepted, isAvailable}, nil, "namespace; lease"},
		{"disconnected for five periods", changes{accepts, finalized, isAccepted, isAvailable}, seen(5*time.Minute, false),
			"taints=unreachable; addons; ManagedClusterConditionAvailable=Unknown/ManagedClusterLeaseUpdateStopped"},
		{"nearly so", changes{accepts, finalized, isAccepted, isAvailable}, seen(5*time.Minute-time.Second, false), "after 1s"},
		{"disconnected for five of its short periods", changes{accepts, slow, finalized, isAccepted, isBroken, tainted(unavailable)}, seen(50*time.Second, false),
			"taints=unreachable; addons; ManagedClusterConditionAvailable=Unknown/ManagedClusterLeaseUpdateStopped"},
		{"stays disconnected", changes{accepts, finalized, isAccepted, isDisconnected, tainted(unreachable)}, seen(time.Hour, false), ""},
		{"never connected", changes{accepts, finalized, isAccepted, tainted(unreachable)}, seen(time.Hour, false), "addons; ManagedClusterConditionAvailable=Unknown/ManagedClusterLeaseUpdateStopped"},
		{"is back", changes{accepts, finalized, isAccepted, isAvailable, foreign, tainted(unreachable)}, lastSeen, "taints=gpu; after 4m0s"},
		{"is back, without another taint", changes{accepts, finalized, isAccepted, isAvailable, tainted(unreachable)}, lastSeen, "taints=; after 4m0s"},
		{"its apiserver is away", changes{accepts, finalized, isAccepted, isBroken, foreign}, lastSeen, "taints=gpu,unavailable; after 4m0s"},
		{"its taint has another effect", changes{tainted("example.com/x"), softly}, nil, "taints=x,unreachable"},
		{"withdrawn", changes{finalized, isAccepted, isAvailable}, lastSeen, "deny; HubAcceptedManagedCluster=False/HubClusterAdminDenied; after 4m0s"},
		{"withdrawn, and disconnected", changes{finalized, isDenied, isAvailable}, seen(time.Hour, false),
			"taints=unreachable; deny; addons; ManagedClusterConditionAvailable=Unknown/ManagedClusterLeaseUpdateStopped"},
		{"accepted again", changes{accepts, finalized, isDenied, isAvailable}, lastSeen, "HubAcceptedManagedCluster=True/HubClusterAdminAccepted; after 4m0s"},
		{"restored without its status", changes{accepts, finalized, isAvailable}, lastSeen, "member; HubAcceptedManagedCluster=True/HubClusterAdminAccepted; after 4m0s"},
		{"joined", changes{accepts, finalized, isAccepted, isJoined, isAvailable}, lastSeen, "member; after 4m0s"},
		{"keeps other finalizers", changes{foreign, accepts, isAccepted, isAvailable}, lastSeen, "finalizers=example.com/other," + finalizer + "; after 4m0s"},
		{"renews", changes{accepts, finalized, isAccepted, isAvailable}, seen(0, true), "ManagedClusterConditionClockSynced=True/ManagedClusterClockSynced; after 5m0s"},
		{"goes on renewing", changes{accepts, finalized, isAccepted, isAvailable, clock(metav1.ConditionTrue, "ManagedClusterClockSynced")}, seen(0, true), "after 5m0s"},
		{"reported nothing, for OCM found its clock wrong", changes{accepts, finalized, isAccepted, isAvailable, clock(metav1.ConditionFalse, "ManagedClusterClockOutOfSync")}, seen(0, true),
			"ManagedClusterConditionClockSynced=True/ManagedClusterClockSynced; after 5m0s"},
		{"its renewal was written late", changes{accepts, finalized, isAccepted, isAvailable, clock(metav1.ConditionTrue, "ManagedClusterClockSynced")},
			&renewal{written: start.Add(-3 * time.Minute), seen: start.Add(-time.Minute), watched: true}, "after 2m0s"},
		{"its renewal was written late, and it reported later", changes{accepts, finalized, isAccepted, isAvailable, clock(metav1.ConditionTrue, "ManagedClusterClockSynced")},
			&renewal{written: start.Add(-3 * time.Minute), seen: start.Add(-time.Minute), watched: true, lastSeen: start.Add(-2 * time.Minute)}, "after 3m0s"},
		{"its clock is ahead", changes{accepts, finalized, isAccepted, isAvailable, clock(metav1.ConditionTrue, "ManagedClusterClockSynced")},
			&renewal{written: start.Add(time.Hour), seen: start.Add(-time.Minute), watched: true}, "after 4m0s"},
		{"its late renewal is missed", changes{accepts, finalized, isAccepted, isAvailable, clock(metav1.ConditionTrue, "ManagedClusterClockSynced")},
			&renewal{written: start.Add(-5 * time.Minute), seen: start.Add(-210 * time.Second), watched: true}, "taints=unreachable; addons; ManagedClusterConditionAvailable=Unknown/ManagedClusterLeaseUpdateStopped"},
		{"an old Lease is no renewal", changes{accepts, finalized, isAccepted, isAvailable}, seen(0, false), "after 5m0s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := clusterState{name: "east", cluster: clusterNamed("east", c.cluster...), renewal: c.renewal, now: start}
			before := s.cluster.DeepCopy()
			e := decide(rules{}, s)
			if got := reported(e); got != c.want {
				t.Errorf("decided\n%s\nwant\n%s", got, c.want)
			}
			if fmt.Sprint(before) != fmt.Sprint(s.cluster) {
				t.Errorf("it changed its argument: %v, was %v", s.cluster, before)
			}
			if e.after == 0 && e.change == nil && len(e.conditions) == 0 && c.want != "" && !e.lease {
				t.Errorf("%+v does nothing", e)
			}
			if got := reported(decide(rules{}, after(s, e))); strings.Contains(got, "=") {
				t.Errorf("the result of the decision needs another one: %s", got)
			}
		})
	}
}

// after returns the state after the effects were executed.
func after(s clusterState, e effects) clusterState {
	s.cluster = s.cluster.DeepCopy()
	s.cluster.Status.Conditions = with(s.cluster.Status.Conditions, e.conditions...)
	if e.change != nil {
		if e.change.finalizers != nil {
			s.cluster.Finalizers = e.change.finalizers
		}
		if e.change.taints != nil {
			s.cluster.Spec.Taints = e.change.taints
		}
	}
	if e.change != nil && e.change.claim != "" {
		metav1.SetMetaDataAnnotation(&s.cluster.ObjectMeta, KeyAnnotation, e.change.claim)
	}
	if e.lease {
		s.renewal = &renewal{written: s.now, seen: s.now}
	}
	return s
}

func TestDecide_End(t *testing.T) {
	deletion := func(ago time.Duration) func(c *clusterv1.ManagedCluster) {
		return func(c *clusterv1.ManagedCluster) {
			at := metav1.NewTime(start.Add(-ago))
			c.DeletionTimestamp = &at
		}
	}
	has := func(k kind, name, priority string, deleting bool) object {
		m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{clusterv1.CleanupPriorityAnnotationKey: priority}}}
		if deleting {
			m.DeletionTimestamp = &metav1.Time{Time: start}
		}
		return objectOf(k, m)
	}
	remains := func(n string) string { return "Deleting=False/ResourceRemaining; after " + n }
	for _, c := range []struct {
		name      string
		finalizer string
		ago       time.Duration
		remaining remaining
		want      string
	}{
		{"add-ons are first", finalizer, 0, remaining{[]object{has(addon, "a", "", false)}, []object{has(work, "w", "", false)}}, "remove a; " + remains("1s")},
		{"works by their priority", finalizer, 0, remaining{nil, []object{has(work, "last", "100", false), has(work, "ten", "10", false), has(work, "ten-too", "10", false)}}, "remove ten; remove ten-too; " + remains("1s")},
		{"what has none, or none that counts, is among the first", finalizer, 0, remaining{nil, []object{has(work, "one", "1", false), has(work, "none", "", false), has(work, "bad", "-1", false), has(work, "high", "101", false)}},
			"remove none; remove bad; remove high; " + remains("1s")},
		{"what goes already holds the rest", finalizer, time.Minute, remaining{nil, []object{has(work, "one", "1", true), has(work, "two", "2", false)}}, remains("6s")},
		{"a cluster that is off is looked at less often", finalizer, time.Hour, remaining{nil, []object{has(work, "one", "1", true)}}, remains("1m0s")},
		{"nothing is left", finalizer, time.Hour, remaining{}, "Deleting=True/NoResource; release"},
		{"nothing is left, of others' clean-up", resourceFinalizer, 0, remaining{}, "Deleting=True/NoResource; release"},
		{"others hold it", "example.com/other", 0, remaining{nil, []object{has(work, "w", "", false)}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			cluster := clusterNamed("east", accepts, isAvailable, deletion(c.ago), func(m *clusterv1.ManagedCluster) { m.Finalizers = []string{c.finalizer} })
			got := reported(decide(rules{}, clusterState{name: "east", cluster: cluster, remaining: c.remaining, now: start}))
			if got != c.want {
				t.Errorf("decided\n%s\nwant\n%s", got, c.want)
			}
		})
	}
	if c := clusterNamed("east", deletion(0)); reported(decide(rules{}, clusterState{name: "east", cluster: c, now: start})) != "" {
		t.Error("a cluster that was never accepted has something to clean up")
	}
	if !slices.Equal([]string{addon.String(), work.String()}, []string{"add-ons", "works"}) {
		t.Error("kinds have wrong names")
	}
}
