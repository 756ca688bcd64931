package main

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"

	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

const (
	bundles = "io.open-cluster-management.works.v1alpha1.manifestbundles"
	// source is the identity that publishes. deploy/ has no mapping for it, so the fleet adds one.
	source = "program"
	// payloadBytes is the size of a work's data.
	payloadBytes = 4096
)

// payload is a work's data of payloadBytes. Like the data of Secrets it cannot be compressed well.
var payload = func() []byte {
	const frame = `{"manifests":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"bench","namespace":"default"},"data":{"k":"%s"}}]}`
	noise := make([]byte, (payloadBytes-len(frame)+2)*3/4)
	_, _ = rand.Read(noise) // never fails
	return fmt.Appendf(nil, frame, base64.StdEncoding.EncodeToString(noise))
}()

type value = cloudeventsv1.CloudEvent_CloudEventAttributeValue

func text(s string) *value {
	return &value{Attr: &cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeString{CeString: s}}
}

func integer(n int32) *value {
	return &value{Attr: &cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeInteger{CeInteger: n}}
}

// spec returns one version of a work, as an OCM source sends it.
func spec(cluster, name string, version int32) *cloudeventsv1.PublishRequest {
	id := cluster + "-" + name
	return &cloudeventsv1.PublishRequest{Event: &cloudeventsv1.CloudEvent{
		Id: fmt.Sprintf("%s-%d", id, version), Source: source, SpecVersion: "1.0", Type: bundles + ".spec.update_request",
		Attributes: map[string]*value{
			"contenttype": text("application/json"), "ce-clustername": text(cluster), "ce-originalsource": text(""),
			"ce-resourceid": text(id), "ce-resourceversion": integer(version), "ce-logtracing": text("{}"),
			"ce-metadata": text(fmt.Sprintf(`{"name":%q,"namespace":%q,"uid":%q,"generation":%d}`, name, cluster, id, version)),
		},
		Data: &cloudeventsv1.CloudEvent_BinaryData{BinaryData: payload},
	}}
}

// resyncRequest returns a version list of a cluster without works.
func resyncRequest(cluster string) *cloudeventsv1.PublishRequest {
	return &cloudeventsv1.PublishRequest{Event: &cloudeventsv1.CloudEvent{
		Id: "resync-" + cluster, Source: cluster + "-agent", SpecVersion: "1.0", Type: bundles + ".spec.resync_request",
		Attributes: map[string]*value{
			"contenttype": text("application/json"), "ce-clustername": text(cluster), "ce-originalsource": text(""),
		},
		Data: &cloudeventsv1.CloudEvent_BinaryData{BinaryData: []byte(`{"resourceVersions":[]}`)},
	}}
}
