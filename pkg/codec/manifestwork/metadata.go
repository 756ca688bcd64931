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
	// annotationLastApplied repeats the whole object; it stays on the hub.
	annotationLastApplied = "kubectl.kubernetes.io/last-applied-configuration"
	// prefixLogTracing marks the annotations that the logtracing extension carries.
	prefixLogTracing = "logging.open-cluster-management.io/"
	// noLogTracing is the logtracing extension of a work without such annotations.
	noLogTracing = "{}"
)

// metadataJSON is the metadata extension of a work: its ObjectMeta without
// what is of no use outside of the hub and would only make events large or
// different from one another.
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

// parseMetadata reads a metadata extension; an empty text is taken like {}.
func parseMetadata(text string) (m metav1.ObjectMeta, err error) {
	if text == "" {
		return m, nil
	}
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return metav1.ObjectMeta{}, &codec.AttributeError{Attribute: codec.ExtMetadata, Problem: "must be the JSON of a Kubernetes ObjectMeta"}
	}
	return m, nil
}

// wireVersion is the resourceversion of a generation: itself, or 0
// (unversioned) when a CloudEvents integer cannot hold it. The true one is in
// the metadata extension then.
func wireVersion(generation int64) int32 {
	if generation > math.MaxInt32 {
		return 0
	}
	return int32(generation) // not above MaxInt32, and callers refuse negative ones
}

// trueVersion undoes wireVersion.
func trueVersion(version, metadataGeneration int64) int64 {
	if version == 0 && metadataGeneration > 0 {
		return metadataGeneration
	}
	return version
}

// logTracing is the logtracing extension for a work's annotations.
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

// adoptLogTracing copies the annotations of a logtracing extension into m. A
// text that is no JSON carries none: how a work is traced through logs is
// never a reason not to deliver it.
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
