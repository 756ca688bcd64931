package registration

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// The text fields that an agent may set in an Event and in its regarded objects, with their limits in bytes.
// Some of the limits are those of the hub.
var (
	eventTexts = map[string]int{
		"reportingController": maxName, "reportingInstance": 128, "action": 128, "reason": 128, "note": 1 << 10, "type": 63,
	}
	regardedTexts = map[string]int{
		"apiVersion": maxName, "kind": 63, "namespace": 63, "name": maxName, "uid": 63, "resourceVersion": 63, "fieldPath": maxName,
	}
)

// maxName is the longest Kubernetes name in bytes.
const maxName = 253

// createEvent builds an Event in the namespace of the requesting cluster.
func createEvent(a agentRequest) (call, error) {
	if err := a.inOwnNamespace(); err != nil {
		return call{}, err
	}
	var sent map[string]any
	if err := utiljson.Unmarshal(a.sent.raw, &sent); err != nil {
		return call{}, a.invalid("it cannot be read")
	}
	object, err := a.textsIn(sent, "", eventTexts)
	for _, field := range []string{"regarding", "related"} {
		if of, ok := sent[field].(map[string]any); ok && err == nil {
			object[field], err = a.textsIn(of, field+".", regardedTexts)
		}
	}
	if err != nil {
		return call{}, err
	}
	if at, ok := sent["eventTime"]; ok {
		if object["eventTime"], err = a.timeOf("eventTime", at); err != nil {
			return call{}, err
		}
	}
	object["apiVersion"], object["kind"] = kubeEvents.GroupVersion().String(), "Event"
	object["metadata"] = map[string]any{"namespace": a.cluster, "name": a.sent.Metadata.Name}
	return call{verb: create, resource: kubeEvents, namespace: a.cluster, name: a.sent.Metadata.Name, object: object}, nil
}

// textsIn returns the allowed text fields of a sent object.
func (a agentRequest) textsIn(sent map[string]any, of string, most map[string]int) (map[string]any, error) {
	taken := map[string]any{}
	for name, bytes := range most {
		value, there := sent[name]
		text, ok := value.(string)
		switch {
		case !there:
		case !ok:
			return nil, a.invalid("%s%s is no text", of, name)
		case len(text) > bytes:
			return nil, a.invalid("%s%s has %d bytes, at most %d are accepted: shorten it", of, name, len(text), bytes)
		default:
			taken[name] = text
		}
	}
	return taken, nil
}

// timeOf returns a sent time in the form of Kubernetes; null stays null.
func (a agentRequest) timeOf(field string, sent any) (any, error) {
	text, ok := sent.(string)
	if sent == nil {
		return nil, nil //nolint:nilnil // null is a time of Kubernetes
	}
	if at, err := time.Parse(time.RFC3339Nano, text); ok && err == nil {
		return at.UTC().Format(metav1.RFC3339Micro), nil
	}
	return nil, a.invalid("%s is no time", field)
}

// updateEvent records another occurrence of an Event: it changes the series, and nothing else.
func updateEvent(a agentRequest) (call, error) {
	if err := a.inOwnNamespace(); err != nil {
		return call{}, err
	}
	var sent struct {
		Series *struct {
			Count            int32 `json:"count"`
			LastObservedTime any   `json:"lastObservedTime"`
		} `json:"series"`
	}
	if err := utiljson.Unmarshal(a.sent.raw, &sent); err != nil || sent.Series == nil {
		return call{}, a.invalid("it has no series")
	}
	at, err := a.timeOf("series.lastObservedTime", sent.Series.LastObservedTime)
	return call{
		verb: mergePatch, resource: kubeEvents, namespace: a.cluster, name: a.sent.Metadata.Name,
		object: map[string]any{"series": map[string]any{"count": int64(sent.Series.Count), "lastObservedTime": at}},
	}, err
}
