package conditionrules

import (
	"errors"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// wellKnown reports for some kinds whether an object is complete, with a message.
var wellKnown = map[schema.GroupVersionKind]func(map[string]any) (complete bool, message string, err error){
	{Group: "batch", Version: "v1", Kind: "Job"}: jobComplete,
	{Version: "v1", Kind: "Pod"}:                 podComplete,
}

func jobComplete(job map[string]any) (bool, string, error) {
	conditions, _, _ := unstructured.NestedFieldNoCopy(job, "status", "conditions")
	list, _ := conditions.([]any)
	for _, c := range list {
		c, _ := c.(map[string]any)
		if (c["type"] == "Complete" || c["type"] == "Failed") && c["status"] == "True" {
			return true, "Job is finished", nil
		}
	}
	return false, "Job is not finished", nil
}

func podComplete(pod map[string]any) (bool, string, error) {
	status, _ := pod["status"].(map[string]any)
	if status == nil {
		return false, "", errors.New("no such key: status")
	}
	phase, _ := status["phase"].(string)
	if phase == "" {
		return false, "", errors.New("no such key: phase")
	}
	return phase == "Succeeded" || phase == "Failed", "Pod is in phase " + phase, nil
}
