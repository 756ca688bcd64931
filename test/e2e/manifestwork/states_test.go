package manifestwork

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/test/e2e/harness"
)

// outcome is the effect of a strategy on a ConfigMap. The manifest has the value "ours".
type outcome struct {
	made  bool   // a missing object is created
	owned bool   // the work becomes an owner, and deletes the object with itself
	value string // final value of an object that had "theirs"
}

// inEveryState applies a work with a strategy to an object in each initial state.
func inEveryState(t *testing.T, typ workv1.UpdateStrategyType, want outcome) {
	for name, test := range map[string]func(*scene, *testing.T){
		"absent": (*scene).absent, "equal": (*scene).equal, "different": (*scene).different,
		"of-another-work": (*scene).ofAnotherWork, "terminating": (*scene).terminating,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := shared.NamespaceOn(t, cluster)
			test(&scene{outcome: want, ns: ns, work: byStrategy(harness.NewWork(t, cluster, ns, harness.ConfigMapYAML(ns, "one", "ours")), typ, "configmaps", ns)}, t)
		})
	}
}

// byStrategy sets the strategy for all objects of a resource in a namespace.
func byStrategy(w *workv1.ManifestWork, typ workv1.UpdateStrategyType, resource, ns string) *workv1.ManifestWork {
	w.Spec.ManifestConfigs = append(w.Spec.ManifestConfigs, workv1.ManifestConfigOption{
		ResourceIdentifier: workv1.ResourceIdentifier{Resource: resource, Namespace: ns, Name: "*"},
		UpdateStrategy:     &workv1.UpdateStrategy{Type: typ},
	})
	return w
}

type scene struct {
	outcome
	ns   string
	work *workv1.ManifestWork
}

func (s *scene) absent(t *testing.T) {
	f := shared
	w := f.Create(t, s.work)
	if s.made {
		f.Ready(t, w)
		f.HasValue(t, cluster, s.ns, "one", "ours")
	} else {
		f.ConditionsAre(t, w, map[string]metav1.ConditionStatus{workv1.WorkApplied: metav1.ConditionTrue, workv1.WorkAvailable: metav1.ConditionFalse})
		lists(t, w.Name)
		if _, err := f.ConfigMap(t.Context(), cluster, s.ns, "one"); harness.Absent(err, "the ConfigMap") != nil {
			t.Fatalf("an object that is not to be made: %v", err)
		}
		s.theirs(t, "theirs")
		f.Ready(t, w)
	}
	s.ends(t, w)
}

func (s *scene) equal(t *testing.T) {
	before := s.theirs(t, "ours")
	w := shared.Deliver(t, s.work)
	s.settled(t, w, before, "ours")
	s.ends(t, w)
}

func (s *scene) different(t *testing.T) {
	before := s.theirs(t, "theirs")
	w := shared.Deliver(t, s.work)
	s.settled(t, w, before, s.value)
	s.ends(t, w)
}

func (s *scene) ofAnotherWork(t *testing.T) {
	f := shared
	other := f.Deliver(t, harness.NewWork(t, cluster, s.ns+"-other", harness.ConfigMapYAML(s.ns, "one", s.value)))
	uid := configMap(t, s.ns, "one").UID
	w := f.Deliver(t, s.work)
	owners := []string{other.Name}
	if s.owned {
		owners = append(owners, w.Name)
	}
	harness.Eventually(t, func(ctx context.Context) error { return f.Owners(ctx, cluster, s.ns, "one", owners...) })
	lists(t, w.Name, "one")
	f.HasValue(t, cluster, s.ns, "one", s.value)

	f.Remove(t, cluster, w.Name)
	harness.Consistently(t, func(ctx context.Context) error {
		if err := f.Owners(ctx, cluster, s.ns, "one", other.Name); err != nil {
			return err
		}
		return sameObject(ctx, s.ns, "one", uid)
	})
}

func (s *scene) terminating(t *testing.T) {
	f := shared
	api := f.API[cluster].Kube.CoreV1().ConfigMaps(s.ns)
	before := s.theirs(t, "theirs", hold)
	if err := api.Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w := f.Deliver(t, s.work)
	lists(t, w.Name, "one")
	harness.Consistently(t, func(ctx context.Context) error {
		cm, err := f.ConfigMap(ctx, cluster, s.ns, "one")
		if err != nil {
			return err
		}
		if cm.UID != before.UID || cm.DeletionTimestamp == nil || len(cm.Finalizers) != 1 {
			return fmt.Errorf("the object is %v", cm)
		}
		return nil
	})
	typ, patch := harness.MergePatch(map[string]any{"metadata": map[string]any{"finalizers": nil}})
	if _, err := api.Patch(t.Context(), "one", typ, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if !s.made {
		f.NoConfigMap(t, cluster, s.ns, "one")
		f.ConditionsAre(t, w, map[string]metav1.ConditionStatus{workv1.WorkApplied: metav1.ConditionTrue, workv1.WorkAvailable: metav1.ConditionFalse})
		lists(t, w.Name)
		return
	}
	f.HasValue(t, cluster, s.ns, "one", "ours")
	f.Ready(t, w)
	s.ends(t, w)
}

// theirs creates the object as another client.
func (s *scene) theirs(t *testing.T, value string, finalizers ...string) *corev1.ConfigMap {
	t.Helper()
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "one", Labels: map[string]string{"theirs": "1"}, Finalizers: finalizers},
		Data:       map[string]string{"key": value},
	}
	cm, err := shared.API[cluster].Kube.CoreV1().ConfigMaps(s.ns).Create(t.Context(), cm, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return cm
}

// settled checks the final state of another owner's object, and that it does not change again.
func (s *scene) settled(t *testing.T, w *workv1.ManifestWork, before *corev1.ConfigMap, value string) {
	t.Helper()
	f := shared
	owners := []string{}
	if s.owned {
		owners = append(owners, w.Name)
	}
	check := func(ctx context.Context) error {
		cm, err := f.ConfigMap(ctx, cluster, s.ns, "one")
		if err != nil {
			return err
		}
		if cm.UID != before.UID || cm.Data["key"] != value || cm.Labels["theirs"] != "1" || !s.owned && cm.ResourceVersion != before.ResourceVersion {
			return fmt.Errorf("the object is %v", cm)
		}
		return f.Owners(ctx, cluster, s.ns, "one", owners...)
	}
	harness.Eventually(t, check)
	lists(t, w.Name, "one")
	version := configMap(t, s.ns, "one").ResourceVersion
	touch(t, w)
	touch(t, w)
	if err := check(t.Context()); err != nil {
		t.Error(err)
	}
	if got := configMap(t, s.ns, "one").ResourceVersion; got != version {
		t.Errorf("written without a difference: version %s became %s", version, got)
	}
}

// ends deletes the work. An object that it owns is deleted too, others stay.
func (s *scene) ends(t *testing.T, w *workv1.ManifestWork) {
	t.Helper()
	f := shared
	uid := configMap(t, s.ns, "one").UID
	lists(t, w.Name, "one")
	f.Remove(t, cluster, w.Name)
	if s.owned {
		f.NoConfigMap(t, cluster, s.ns, "one")
		return
	}
	harness.Consistently(t, func(ctx context.Context) error { return sameObject(ctx, s.ns, "one", uid) })
}

const touchLabel = "example.com/touched"

// touch makes the agent reconcile the work once more, and waits for that.
func touch(t *testing.T, w *workv1.ManifestWork) {
	t.Helper()
	var n string
	shared.Update(t, w.Namespace, w.Name, func(w *workv1.ManifestWork) {
		w.Labels = maps.Clone(w.Labels)
		if w.Labels == nil {
			w.Labels = map[string]string{}
		}
		last, _ := strconv.Atoi(w.Labels[touchLabel]) // 0 without the label
		n = strconv.Itoa(last + 1)
		w.Labels[touchLabel] = n
	})
	harness.Eventually(t, func(ctx context.Context) error {
		rec, err := shared.Applied(ctx, cluster, w.Name)
		if err != nil {
			return err
		}
		if rec.Labels[touchLabel] != n {
			return fmt.Errorf("labels are %v, want %s=%s", rec.Labels, touchLabel, n)
		}
		return nil
	})
}

// grantAgent gives the agent all rights in API groups, as an administrator of the cluster does. It waits until
// they are in force.
func grantAgent(t *testing.T, groups ...string) {
	t.Helper()
	name := strings.Trim(strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name())), "-") + "-agent"
	clusterRole(t, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{aggregateLabel: "true"}},
		Rules:      []rbacv1.PolicyRule{{APIGroups: groups, Resources: []string{"*"}, Verbs: []string{"get", "list", "watch", "create", "update", "patch", "delete"}}},
	})
	harness.Eventually(t, func(ctx context.Context) error {
		for _, g := range groups {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User:               "system:serviceaccount:hawser:hawser-agent",
				ResourceAttributes: &authorizationv1.ResourceAttributes{Group: g, Version: "*", Resource: "anything", Verb: "create", Namespace: "default"},
			}}
			review, err := shared.API[cluster].Kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			if err != nil {
				return err
			}
			if !review.Status.Allowed {
				return fmt.Errorf("the agent has no rights in %s", g)
			}
		}
		return nil
	})
}
