package registration

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-io/hawser/internal/identity"
)

// ConfigMap of the authorities with which the controllers of Open Cluster Management sign for clusters: the
// present one, and former ones that have not expired.
const (
	BundleNamespace = "open-cluster-management-hub"
	BundleConfigMap = "ca-bundle-configmap"
	bundleKey       = "ca-bundle.crt"
)

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// authorities returns the authorities that sign for clusters on a hub with the controllers of Open Cluster
// Management, as PEM. It returns an empty slice, not nil, without such controllers. On an error the result is
// nil.
func (h Hub) authorities(ctx context.Context) ([]byte, error) {
	bundle, err := h.Own.Resource(configMaps).Namespace(BundleNamespace).Get(ctx, BundleConfigMap, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return []byte{}, nil
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("hub-source has not the right to get ConfigMap %s/%s, apply deploy/hub-source-registration/rbac.yaml again: %w", BundleNamespace, BundleConfigMap, err)
	case err != nil:
		return nil, fmt.Errorf("read the authorities that sign for clusters from the hub: %w", err)
	}
	text, _, err := unstructured.NestedString(bundle.Object, "data", bundleKey)
	if err == nil {
		var good []byte
		if good, err = identity.CheckAuthorities([]byte(text), time.Now()); err == nil {
			return good, nil
		}
	}
	return nil, fmt.Errorf("ConfigMap %s/%s, key %s: %w", BundleNamespace, BundleConfigMap, bundleKey, err)
}
