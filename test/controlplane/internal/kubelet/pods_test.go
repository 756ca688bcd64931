package kubelet

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var now = metav1.NewTime(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC))

// pod returns a pod as the API server creates it, changed by edits.
func pod(edits ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "7d9a", Generation: 1},
		Spec: corev1.PodSpec{
			SchedulerName:  corev1.DefaultSchedulerName,
			InitContainers: []corev1.Container{{Name: "init", Image: "i:1"}},
			Containers:     []corev1.Container{{Name: "main", Image: "m:1"}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	for _, edit := range edits {
		edit(p)
	}
	return p
}

func bound(p *corev1.Pod)   { p.Spec.NodeName = "node-0" }
func running(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }
func deleted(grace int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, &grace }
}
func uid(i int) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.UID = types.UID(fmt.Sprintf("5f2c6d1e-%04d", i)) }
}
func ownedBy(kind string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: "owner", Controller: new(true)}}
	}
}

func TestNext(t *testing.T) {
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		want step
	}{
		"new":               {pod(), bind},
		"gated":             {pod(func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "wait"}} }), nothing},
		"other scheduler":   {pod(func(p *corev1.Pod) { p.Spec.SchedulerName = "theirs" }), nothing},
		"bound":             {pod(bound), start},
		"running":           {pod(bound, running), nothing},
		"failed":            {pod(bound, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), nothing},
		"deleted":           {pod(bound, running, deleted(30)), remove},
		"deleted, unbound":  {pod(deleted(30)), remove},
		"held by finalizer": {pod(bound, running, deleted(0)), nothing},
	} {
		t.Run(name, func(t *testing.T) {
			if got := next(tc.pod); got != tc.want {
				t.Errorf("next = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestStarted_LeavesNothingToDo(t *testing.T) {
	for _, kind := range []string{"Job", "ReplicaSet"} {
		before := pod(bound, ownedBy(kind))
		after := started(before, now)
		if before.Status.Phase != corev1.PodPending {
			t.Fatalf("%s: the pod of the informer's cache was changed", kind)
		}
		if got := next(after); got != nothing {
			t.Errorf("%s: a started pod needs step %v", kind, got)
		}
	}
}

func TestStarted_ReportsReadyOrDone(t *testing.T) {
	type view struct {
		Phase             corev1.PodPhase
		Ready             corev1.ConditionStatus
		InitDone, Running bool
		SidecarRunning    bool
	}
	always := corev1.ContainerRestartPolicyAlways
	for kind, want := range map[string]view{
		"ReplicaSet": {Phase: corev1.PodRunning, Ready: corev1.ConditionTrue, InitDone: true, Running: true, SidecarRunning: true},
		"Job":        {Phase: corev1.PodSucceeded, Ready: corev1.ConditionFalse, InitDone: true},
	} {
		p := pod(bound, ownedBy(kind), func(p *corev1.Pod) {
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: "sidecar", RestartPolicy: &always})
		})
		s := started(p, now).Status
		got := view{
			Phase:          s.Phase,
			InitDone:       s.InitContainerStatuses[0].State.Terminated != nil,
			SidecarRunning: s.InitContainerStatuses[1].State.Running != nil,
			Running:        s.ContainerStatuses[0].State.Running != nil && s.ContainerStatuses[0].Ready,
		}
		for _, c := range s.Conditions {
			if c.Type == corev1.PodReady {
				got.Ready = c.Status
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("pod of a %s (-want +got):\n%s", kind, diff)
		}
	}
}

func TestPickNode(t *testing.T) {
	onNode := func(field corev1.NodeSelectorRequirement) *corev1.Pod {
		return pod(func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{field}}},
				},
			}}
		})
	}
	daemon := onNode(corev1.NodeSelectorRequirement{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"node-7"}})
	if got := pickNode(daemon, 10); got != "node-7" {
		t.Errorf("a pod of a DaemonSet went to %s, want node-7", got)
	}
	avoiding := onNode(corev1.NodeSelectorRequirement{Key: "metadata.name", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"node-7"}})
	if got := pickNode(avoiding, 1); got != "node-0" {
		t.Errorf("a pod went to %s, want the only node", got)
	}
	seen := map[string]bool{}
	for i := range 100 {
		seen[pickNode(pod(uid(i)), 3)] = true
	}
	if diff := cmp.Diff(map[string]bool{"node-0": true, "node-1": true, "node-2": true}, seen); diff != "" {
		t.Errorf("nodes of a hundred pods (-want +got):\n%s", diff)
	}
}

func TestPodIP_IsAStableAddressOfThePodRange(t *testing.T) {
	ips, seen := netip.MustParsePrefix("10.128.0.0/9"), map[string]bool{}
	for i := range 100 {
		ip, err := netip.ParseAddr(podIP(pod(uid(i))))
		if err != nil || !ips.Contains(ip) {
			t.Fatalf("podIP = %v, %v, want an address in %v", ip, err, ips)
		}
		seen[ip.String()] = true
	}
	if len(seen) < 99 {
		t.Errorf("a hundred pods share %d addresses", len(seen))
	}
	if a, b := podIP(pod(uid(1))), podIP(pod(uid(1), running)); a != b {
		t.Errorf("the address of one pod changed from %s to %s", a, b)
	}
}
