package hubsource

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/hawser-io/hawser/internal/hubsource/core"
)

// StateName returns the name of the ConfigMap with the [core.SavedState] of a source.
func StateName(sourceID string) string { return fieldManager + "-" + sourceID }

// stateStore keeps a SavedState in a ConfigMap, or in memory if maps is nil. In memory it keeps no cursor,
// because a restore of the hub would not take it back. Its methods are not called concurrently.
type stateStore struct {
	maps            typedcorev1.ConfigMapsGetter
	namespace, name string

	// last is the ConfigMap as last read or written, without a resource version if it did not exist. nil: it is
	// unknown.
	last *corev1.ConfigMap
}

// load returns the saved state, the zero state if there is none.
func (k *stateStore) load(ctx context.Context) (s core.SavedState, err error) {
	if k.maps == nil {
		if k.last != nil {
			s = core.StateOf(k.last.Data)
			s.Cursor = ""
		}
		return s, nil
	}
	m, err := k.maps.ConfigMaps(k.namespace).Get(ctx, k.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		labels := map[string]string{"app.kubernetes.io/managed-by": fieldManager}
		m, err = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: k.name, Namespace: k.namespace, Labels: labels}}, nil
	}
	if err != nil {
		return s, err
	}
	k.last = m
	s = core.StateOf(m.Data)
	s.Version = m.ResourceVersion
	return s, nil
}

// version returns the resource version of the saved state, "" if there is none.
func (k *stateStore) version(ctx context.Context) (string, error) {
	s, err := k.load(ctx)
	return s.Version, err
}

// save replaces the ConfigMap and returns its resource version. It returns Conflict or NotFound if another
// client changed it; the next save starts from the present ConfigMap.
func (k *stateStore) save(ctx context.Context, s core.SavedState) (version string, err error) {
	if k.maps == nil {
		k.last = &corev1.ConfigMap{Data: s.Data()}
		return "", nil
	}
	if k.last == nil {
		if _, err := k.load(ctx); err != nil {
			return "", err
		}
	}
	m, maps := k.last.DeepCopy(), k.maps.ConfigMaps(k.namespace)
	m.Data, k.last = s.Data(), nil
	if m.ResourceVersion == "" {
		m, err = maps.Create(ctx, m, metav1.CreateOptions{FieldManager: fieldManager})
	} else {
		m, err = maps.Update(ctx, m, metav1.UpdateOptions{FieldManager: fieldManager})
	}
	if err != nil {
		return "", err
	}
	k.last = m
	return m.ResourceVersion, nil
}
