package kubelet

import (
	"fmt"
	"hash/fnv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const hostIP = "127.0.0.1"

// step is the next step of a pod.
type step int

const (
	nothing step = iota
	bind         // choose a node
	start        // report it running, or done
	remove       // complete its deletion
)

func next(p *corev1.Pod) step {
	switch {
	case p.DeletionTimestamp != nil:
		if grace := p.DeletionGracePeriodSeconds; grace != nil && *grace == 0 {
			return nothing // it has ended already, and waits for its finalizers
		}
		return remove
	case p.Spec.NodeName == "":
		if len(p.Spec.SchedulingGates) > 0 || p.Spec.SchedulerName != corev1.DefaultSchedulerName {
			return nothing // a gate holds it, or another scheduler binds it
		}
		return bind
	case p.Status.Phase == corev1.PodPending:
		return start
	}
	return nothing
}

// pickNode returns the node that the DaemonSet controller requires. It spreads all other pods.
func pickNode(p *corev1.Pod, nodes int) string {
	if name := requiredNode(p.Spec.Affinity); name != "" {
		return name
	}
	return nodeName(int(hash(p) % uint32(nodes)))
}

// requiredNode returns the node of a required affinity, "" if there is none.
func requiredNode(a *corev1.Affinity) string {
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Key == metav1.ObjectNameField && field.Operator == corev1.NodeSelectorOpIn && len(field.Values) == 1 {
				return field.Values[0]
			}
		}
	}
	return ""
}

// started returns a copy of a bound pod with the status of a pod with running containers. If a Job owns it, its
// containers have completed.
func started(p *corev1.Pod, now metav1.Time) *corev1.Pod {
	owner := metav1.GetControllerOf(p)
	done := owner != nil && owner.Kind == "Job"
	p = p.DeepCopy()
	s := &p.Status
	s.Phase, s.StartTime, s.ObservedGeneration = corev1.PodRunning, &now, p.Generation
	if done {
		s.Phase = corev1.PodSucceeded
	}
	s.HostIP, s.HostIPs = hostIP, []corev1.HostIP{{IP: hostIP}}
	s.PodIP = podIP(p)
	s.PodIPs = []corev1.PodIP{{IP: s.PodIP}}
	s.Conditions = conditions(done, p.Generation, now)
	s.InitContainerStatuses, s.ContainerStatuses = nil, nil
	for _, c := range p.Spec.InitContainers {
		sidecar := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		s.InitContainerStatuses = append(s.InitContainerStatuses, containerStatus(c, done || !sidecar, now))
	}
	for _, c := range p.Spec.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses, containerStatus(c, done, now))
	}
	return p
}

func conditions(done bool, generation int64, now metav1.Time) []corev1.PodCondition {
	ready, reason := corev1.ConditionTrue, ""
	if done {
		ready, reason = corev1.ConditionFalse, "PodCompleted"
	}
	condition := func(kind corev1.PodConditionType, status corev1.ConditionStatus, reason string) corev1.PodCondition {
		return corev1.PodCondition{Type: kind, Status: status, Reason: reason, ObservedGeneration: generation, LastTransitionTime: now}
	}
	return []corev1.PodCondition{
		condition(corev1.PodScheduled, corev1.ConditionTrue, ""),
		condition(corev1.PodInitialized, corev1.ConditionTrue, ""),
		condition(corev1.ContainersReady, ready, reason),
		condition(corev1.PodReady, ready, reason),
	}
}

func containerStatus(c corev1.Container, done bool, now metav1.Time) corev1.ContainerStatus {
	s := corev1.ContainerStatus{Name: c.Name, Image: c.Image, ImageID: c.Image}
	if done {
		s.State.Terminated = &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: now, FinishedAt: now}
		return s
	}
	s.Ready, s.Started = true, new(true)
	s.State.Running = &corev1.ContainerStateRunning{StartedAt: now}
	return s
}

// podIP returns an address in 10.128.0.0/9. It follows from the uid, so a restart of this process gives it to no
// other pod.
func podIP(p *corev1.Pod) string {
	h := hash(p)
	return fmt.Sprintf("10.%d.%d.%d", 128+h>>16&127, h>>8&255, h&255)
}

func hash(p *corev1.Pod) uint32 {
	h := fnv.New32a()
	h.Write([]byte(p.UID)) // never fails
	return h.Sum32()
}
