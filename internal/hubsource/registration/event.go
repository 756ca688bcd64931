package registration

import (
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// eventFields are the fields of an Event that an agent fills in.
var eventFields = []string{"eventTime", "reportingController", "reportingInstance", "action", "reason", "regarding", "related", "note", "type"}

// createEvent makes an Event in the namespace of the cluster that asks.
func createEvent(a ask) (call, error) {
	if err := a.inOwnNamespace(); err != nil {
		return call{}, err
	}
	var sent map[string]any
	if err := utiljson.Unmarshal(a.sent.raw, &sent); err != nil {
		return call{}, a.invalid("it cannot be read")
	}
	object := map[string]any{
		"apiVersion": kubeEvents.GroupVersion().String(), "kind": "Event",
		"metadata": map[string]any{"namespace": a.cluster, "name": a.sent.Metadata.Name},
	}
	for _, f := range eventFields {
		if v, ok := sent[f]; ok {
			object[f] = v
		}
	}
	return call{verb: create, resource: kubeEvents, namespace: a.cluster, name: a.sent.Metadata.Name, object: object}, nil
}

// updateEvent says that what an Event tells of happened again: its series, and nothing else.
func updateEvent(a ask) (call, error) {
	if err := a.inOwnNamespace(); err != nil {
		return call{}, err
	}
	var sent struct {
		Series map[string]any `json:"series"`
	}
	if err := utiljson.Unmarshal(a.sent.raw, &sent); err != nil || sent.Series == nil {
		return call{}, a.invalid("it has no series")
	}
	return call{
		verb: mergePatch, resource: kubeEvents, namespace: a.cluster, name: a.sent.Metadata.Name,
		object: map[string]any{"series": map[string]any{"count": sent.Series["count"], "lastObservedTime": sent.Series["lastObservedTime"]}},
	}, nil
}
