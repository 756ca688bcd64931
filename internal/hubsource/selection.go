package hubsource

import (
	"errors"
	"fmt"
	"log/slog"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-io/hawser/internal/informer"
)

// Selection selects the clusters that a hub-source serves. A cluster is the namespace of its works. The zero
// value serves every namespace that has works.
type Selection struct {
	// Clusters selects by the labels of ManagedClusters, Namespaces by those of the namespaces; at most one is set.
	// The values are label selectors.
	Clusters, Namespaces string
}

var (
	managedClusters = schema.GroupVersionResource{Group: "cluster.open-cluster-management.io", Version: "v1", Resource: "managedclusters"}
	namespaces      = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
)

// Validate returns an error for selectors that cannot work.
func (s Selection) Validate() error {
	if s.Clusters != "" && s.Namespaces != "" {
		return errors.New("set a cluster selector or a namespace selector, not both")
	}
	for name, text := range map[string]string{"cluster": s.Clusters, "namespace": s.Namespaces} {
		if _, err := labels.Parse(text); err != nil {
			return fmt.Errorf("%s selector %q: %w", name, text, err)
		}
	}
	return nil
}

// all reports whether every namespace with works is served.
func (s Selection) all() bool { return s.Clusters == "" && s.Namespaces == "" }

// resource returns the watched resource and its selector.
func (s Selection) resource() (schema.GroupVersionResource, string) {
	if s.Clusters != "" {
		return managedClusters, s.Clusters
	}
	return namespaces, s.Namespaces
}

// informer returns the informer of the selected objects, metadata only. The hub evaluates the selector, so it
// reports an object that leaves the selection as deleted.
func (s Selection) informer(c metadata.Interface, log *slog.Logger) (cache.SharedIndexInformer, error) {
	gvr, selector := s.resource()
	i := metadatainformer.NewFilteredMetadataInformer(c, gvr, metav1.NamespaceAll, 0, cache.Indexers{},
		func(o *metav1.ListOptions) { o.LabelSelector = selector }).Informer()
	return i, informer.Prepare(i, log, func(m *metav1.PartialObjectMetadata) (any, error) { // only the name is used
		m.ObjectMeta = metav1.ObjectMeta{Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion}
		return m, nil
	})
}
