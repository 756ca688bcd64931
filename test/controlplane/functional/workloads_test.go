package functional

import (
	"context"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestDeployment_BecomesAvailableBehindItsService(t *testing.T) {
	t.Parallel()
	ns, labels, ctx := namespace(t), map[string]string{"app": "web"}, t.Context()
	if _, err := shared.typed.CoreV1().Services(ns).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := shared.typed.AppsV1().Deployments(ns).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(3)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: podTemplate("web"),
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "Deployment Available", func(ctx context.Context) (bool, error) {
		d, err := shared.typed.AppsV1().Deployments(ns).Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		available := slices.ContainsFunc(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
			return c.Type == appsv1.DeploymentAvailable && c.Status == corev1.ConditionTrue
		})
		return available && d.Status.AvailableReplicas == 3, nil
	})
	eventually(t, "three ready endpoints", func(ctx context.Context) (bool, error) {
		slices, err := shared.typed.DiscoveryV1().EndpointSlices(ns).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=web"})
		if err != nil {
			return false, err
		}
		n := 0
		for _, s := range slices.Items {
			n += len(s.Endpoints)
		}
		return n == 3, nil
	})
}

func TestDaemonSet_HasOnePodOnEachNode(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	if _, err := shared.typed.AppsV1().DaemonSets(ns).Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "node-agent"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "node-agent"}},
			Template: podTemplate("node-agent"),
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "DaemonSet available on both nodes", func(ctx context.Context) (bool, error) {
		d, err := shared.typed.AppsV1().DaemonSets(ns).Get(ctx, "node-agent", metav1.GetOptions{})
		return err == nil && d.Status.NumberAvailable == 2, err
	})
}

func TestJob_Completes(t *testing.T) {
	t.Parallel()
	ns, template := namespace(t), podTemplate("job")
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	if _, err := shared.typed.BatchV1().Jobs(ns).Create(t.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "once"},
		Spec:       batchv1.JobSpec{Template: template, Completions: new(int32(2)), Parallelism: new(int32(2))},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "Job Complete", func(ctx context.Context) (bool, error) {
		j, err := shared.typed.BatchV1().Jobs(ns).Get(ctx, "once", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		return slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
			return c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue
		}), nil
	})
}
