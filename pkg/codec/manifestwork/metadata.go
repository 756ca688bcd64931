package manifestwork

import (
	"encoding/json"
	"maps"
	"math"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/pkg/codec"
)

const (
	// annotationLastApplied repeats the whole object, so it is not sent.
	annotationLastApplied = "kubectl.kubernetes.io/last-applied-configuration"
	// prefixLogTracing is the prefix of the annotations that the logtracing extension carries.
	prefixLogTracing = "logging.open-cluster-management.io/"
	// noLogTracing is the logtracing extension of a work without such annotations.
	noLogTracing = "{}"
)

// metadataJSON returns the metadata extension of a work: its ObjectMeta without fields that are useless outside
// of the hub. They would only make events larger, or different from each other.
func metadataJSON(m metav1.ObjectMeta) (string, error) {
	m.ManagedFields = nil
	m.ResourceVersion = ""
	if _, ok := m.Annotations[annotationLastApplied]; ok {
		m.Annotations = maps.Clone(m.Annotations)
		delete(m.Annotations, annotationLastApplied)
	}
	b, err := json.Marshal(m)
	return string(b), err
}

// parseMetadata reads a metadata extension; an empty text counts as {}.
func parseMetadata(text string) (m metav1.ObjectMeta, err error) {
	if text == "" {
		return m, nil
	}
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return metav1.ObjectMeta{}, &codec.AttributeError{Attribute: codec.ExtMetadata, Problem: "must be the JSON of a Kubernetes ObjectMeta"}
	}
	return m, nil
}

// wireVersion returns the resourceversion of a generation: the generation itself, or 0 (unversioned) if it
// exceeds a CloudEvents integer. The metadata extension then has the full generation.
func wireVersion(generation int64) int32 {
	if generation > math.MaxInt32 {
		return 0
	}
	return int32(generation) // at most MaxInt32, and callers reject negative ones
}

// trueVersion is the inverse of wireVersion.
func trueVersion(version, metadataGeneration int64) int64 {
	if version == 0 && metadataGeneration > 0 {
		return metadataGeneration
	}
	return version
}

// logTracing returns the logtracing extension for the annotations of a work.
func logTracing(annotations map[string]string) (string, error) {
	traced := map[string]string{}
	for k, v := range annotations {
		if strings.HasPrefix(k, prefixLogTracing) {
			traced[k] = v
		}
	}
	b, err := json.Marshal(traced)
	return string(b), err
}

// adoptLogTracing copies the annotations of a logtracing extension into m. Invalid JSON is ignored: a tracing
// problem must not block delivery.
func adoptLogTracing(m *metav1.ObjectMeta, text string) {
	traced := map[string]string{}
	if json.Unmarshal([]byte(text), &traced) != nil {
		return
	}
	for k, v := range traced {
		if !strings.HasPrefix(k, prefixLogTracing) {
			continue
		}
		if m.Annotations == nil {
			m.Annotations = map[string]string{}
		}
		m.Annotations[k] = v
	}
}
