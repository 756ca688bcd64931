package kubelet

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
)

// Register creates the nodes that do not exist yet, Ready and without taints.
func (k *Kubelet) Register(ctx context.Context) error {
	for i := range k.Nodes {
		if err := k.register(ctx, newNode(nodeName(i), metav1.Now())); err != nil {
			return fmt.Errorf("register %s: %w", nodeName(i), err)
		}
	}
	return nil
}

func (k *Kubelet) register(ctx context.Context, node *corev1.Node) error {
	nodes := k.Client.CoreV1().Nodes()
	if _, err := nodes.Create(ctx, node, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	// Admission taints every new node as not ready. The controller that removes the taint does not run here.
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		got, err := nodes.Get(ctx, node.Name, metav1.GetOptions{})
		if err != nil || len(got.Spec.Taints) == 0 {
			return err
		}
		got.Spec.Taints = nil
		_, err = nodes.Update(ctx, got, metav1.UpdateOptions{})
		return err
	})
}

func nodeName(i int) string { return fmt.Sprintf("node-%d", i) }

func newNode(name string, now metav1.Time) *corev1.Node {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:              resource.MustParse("32"),
		corev1.ResourceMemory:           resource.MustParse("256Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"),
		corev1.ResourcePods:             resource.MustParse("1000"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelOSStable:   "linux",
			corev1.LabelArchStable: "amd64",
			corev1.LabelHostname:   name,
		}},
		Status: corev1.NodeStatus{
			Capacity:    capacity,
			Allocatable: capacity,
			NodeInfo:    corev1.NodeSystemInfo{KubeletVersion: "simulated", OperatingSystem: "linux", Architecture: "amd64"},
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: hostIP},
				{Type: corev1.NodeHostName, Address: name},
			},
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Simulated",
				Message:           "no container runs on this node",
				LastHeartbeatTime: now, LastTransitionTime: now,
			}},
		},
	}
}
