package manifestwork

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// operate runs hawser as an operator of the broker.
func operate(t *testing.T, args ...string) (string, error) {
	t.Helper()
	f, keys := shared, shared.PKI()
	return hawser(t, append(args, "--broker", f.BrokerAddr(), "--ca", keys.CACert(), "--cert", keys.Cert(pki.Operator, "operator"), "--key", keys.Key(pki.Operator, "operator"))...)
}

// TestOrphans_OfOCMAgent: an AppliedManifestWork that OCM's agent left, and that has no work, is listed
// and stays. It is removed with its objects when an operator approves that.
func TestOrphans_OfOCMAgent(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	api, ctx := f.API[cluster], t.Context()
	name := f.AppliedName("left-behind")
	hash := strings.TrimSuffix(name, "-left-behind")
	rec, err := api.Work.WorkV1().AppliedManifestWorks().Create(ctx, &workv1.AppliedManifestWork{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{workv1.AppliedManifestWorkFinalizer}},
		Spec:       workv1.AppliedManifestWorkSpec{HubHash: hash, AgentID: hash, ManifestWorkName: "left-behind"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cm, err := api.Kube.CoreV1().ConfigMaps(ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "left", OwnerReferences: []metav1.OwnerReference{{
		APIVersion: "work.open-cluster-management.io/v1", Kind: "AppliedManifestWork", Name: name, UID: rec.UID,
	}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rec.Status.AppliedResources = []workv1.AppliedManifestResourceMeta{{
		ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: ns, Name: "left"}, Version: "v1", UID: string(cm.UID),
	}}
	if _, err = api.Work.WorkV1().AppliedManifestWorks().UpdateStatus(ctx, rec, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	uid := string(rec.UID)
	harness.Eventually(t, func(context.Context) error {
		out, err := operate(t, "get", "discrepancies", "--cluster", cluster)
		if err == nil && !listedAs(out, "Unowned", uid, "1 objects") {
			err = errors.New("it is not listed:\n" + out)
		}
		return err
	})
	if out, err := operate(t, "resolve", "orphan", uid, "--cluster", cluster, "--adopt"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	harness.Eventually(t, func(context.Context) error {
		out, err := operate(t, "get", "discrepancies", "--cluster", cluster)
		if err == nil && !listedAs(out, uid, "there is no work left-behind") {
			err = errors.New("the agent does not report why it is not adopted:\n" + out)
		}
		return err
	})
	if out, err := operate(t, "resolve", "orphan", "another-uid", "--cluster", cluster, "--remove"); err == nil {
		t.Errorf("another uid is taken:\n%s", out)
	}
	if err := sameObject(ctx, ns, "left", cm.UID); err != nil {
		t.Error(err)
	}
	if out, err := operate(t, "resolve", "orphan", uid, "--cluster", cluster, "--remove"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	recordGone(t, name)
	f.NoConfigMap(t, cluster, ns, "left")
}
