package manifestwork

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-io/hawser/test/e2e/harness"
)

// configMap reads a ConfigMap of the cluster. It must exist.
func configMap(t *testing.T, ns, name string) *corev1.ConfigMap {
	t.Helper()
	cm, err := shared.ConfigMap(t.Context(), cluster, ns, name)
	if err != nil {
		t.Fatal(err)
	}
	return cm
}

// exist checks that ConfigMaps exist and are not being deleted.
func exist(ctx context.Context, ns string, names ...string) error {
	for _, name := range names {
		cm, err := shared.ConfigMap(ctx, cluster, ns, name)
		if err != nil {
			return err
		}
		if cm.DeletionTimestamp != nil {
			return fmt.Errorf("%s is being deleted", name)
		}
	}
	return nil
}

// sameObject checks that a ConfigMap was not created again.
func sameObject(ctx context.Context, ns, name string, uid types.UID) error {
	cm, err := shared.ConfigMap(ctx, cluster, ns, name)
	if err == nil && cm.UID != uid {
		err = fmt.Errorf("%s was created again", name)
	}
	return err
}

// lists waits until the AppliedManifestWork of a work lists exactly the objects with these names, in this order.
func lists(t *testing.T, work string, names ...string) {
	t.Helper()
	harness.Eventually(t, func(ctx context.Context) error {
		rec, err := shared.Applied(ctx, cluster, work)
		if err != nil {
			return err
		}
		var got []string
		for _, e := range rec.Status.AppliedResources {
			if e.UID == "" {
				return fmt.Errorf("%s has no uid", e.Name)
			}
			got = append(got, e.Name)
		}
		if !slices.Equal(got, names) {
			return fmt.Errorf("%s lists %q, want %q", work, got, names)
		}
		return nil
	})
}
