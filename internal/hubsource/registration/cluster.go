package registration

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	clusterv1 "open-cluster-management.io/api/cluster/v1"
)

// agentAnnotations is the prefix of the annotations that an agent may set on its ManagedCluster.
const agentAnnotations = "agent.open-cluster-management.io/"

// createCluster builds a ManagedCluster from the object that an agent sent. It takes the name, the agent's own
// annotations, and the client configurations. The hub decides all else, first of all acceptance.
func createCluster(a agentRequest, s hubState) (call, error) {
	if a.sent.Metadata.Name != a.cluster {
		return call{}, a.forbidden("it is not the ManagedCluster of cluster %s", a.cluster)
	}
	if s.cluster != nil {
		return call{}, apierrors.NewAlreadyExists(managedClusters.GroupResource(), a.cluster)
	}
	var sent struct {
		Spec struct {
			Configs []struct {
				URL      string `json:"url"`
				CABundle []byte `json:"caBundle"`
			} `json:"managedClusterClientConfigs"`
		} `json:"spec"`
	}
	if err := utiljson.Unmarshal(a.sent.raw, &sent); err != nil {
		return call{}, a.invalid("its spec cannot be read")
	}
	annotations := map[string]any{accountAnnotation: a.user}
	for k, v := range a.sent.Metadata.Annotations {
		if strings.HasPrefix(k, agentAnnotations) {
			annotations[k] = v
		}
	}
	configs := []any{}
	for _, c := range sent.Spec.Configs {
		config := map[string]any{"url": c.URL}
		if len(c.CABundle) > 0 {
			config["caBundle"] = base64Of(c.CABundle)
		}
		configs = append(configs, config)
	}
	return call{verb: create, resource: managedClusters, name: a.cluster, object: map[string]any{
		"apiVersion": managedClusters.GroupVersion().String(), "kind": "ManagedCluster",
		"metadata": map[string]any{"name": a.cluster, "annotations": annotations},
		"spec":     map[string]any{"hubAcceptsClient": false, "managedClusterClientConfigs": configs},
	}}, nil
}

// hubsConditions are the conditions of a ManagedCluster that the hub sets. Klusterlets act on the first one. If
// an agent sends such a condition, the condition of the hub replaces it.
var hubsConditions = []string{clusterv1.ManagedClusterConditionHubAccepted, clusterv1.ManagedClusterConditionClockSynced, clusterv1.ManagedClusterConditionDeleting}

// clusterStatus updates the status of a ManagedCluster. An agent that does not know the present object gets a
// conflict, as from the hub. The stream of the agent brings it the present object.
func clusterStatus(a agentRequest, s hubState) (call, error) {
	if a.sent.Metadata.Name != a.cluster {
		return call{}, a.forbidden("it is not the ManagedCluster of cluster %s", a.cluster)
	}
	if uid := a.sent.Metadata.UID; uid != "" && uid != s.cluster.UID {
		return call{}, a.conflict("it was created again meanwhile")
	}
	if a.sent.Metadata.ResourceVersion != s.cluster.ResourceVersion {
		return call{}, a.conflict("the object has been modified: apply your changes to the latest version and try again")
	}
	sent, err := statusIn(a.sent.raw)
	if err != nil {
		return call{}, a.invalid("%v", err)
	}
	has, err := statusIn(s.cluster.json)
	if err != nil {
		return call{}, a.invalid("the status that the hub has cannot be read")
	}
	sent["conditions"] = merged(listed(sent["conditions"]), listed(has["conditions"]))
	if reflect.DeepEqual(sent, has) {
		return call{}, errNothing
	}
	return call{verb: updateStatus, resource: managedClusters, subresource: "status", name: a.cluster, object: map[string]any{
		"apiVersion": managedClusters.GroupVersion().String(), "kind": "ManagedCluster",
		"metadata": map[string]any{"name": a.cluster, "uid": string(s.cluster.UID), "resourceVersion": s.cluster.ResourceVersion},
		"status":   sent,
	}}, nil
}

func (a agentRequest) conflict(why string) error {
	return apierrors.NewConflict(a.resource(), a.sent.Metadata.Name, errors.New(why))
}

// statusIn returns the status of an object.
func statusIn(object []byte) (map[string]any, error) {
	var o struct {
		Status map[string]any `json:"status"`
	}
	if err := utiljson.Unmarshal(object, &o); err != nil {
		return nil, errors.New("its status cannot be read")
	}
	if o.Status == nil {
		o.Status = map[string]any{}
	}
	return o.Status, nil
}

// listed returns the conditions of a status as a list, nil if they have another form.
func listed(conditions any) (list []map[string]any) {
	all, _ := conditions.([]any)
	for _, c := range all {
		if c, ok := c.(map[string]any); ok {
			list = append(list, c)
		}
	}
	return list
}

// merged returns the conditions of the agent, with the hub's own conditions as the hub has them.
func merged(sent, has []map[string]any) []any {
	own := map[string]map[string]any{}
	for _, c := range has {
		if t, _ := c["type"].(string); slices.Contains(hubsConditions, t) {
			own[t] = c
		}
	}
	all := []any{}
	for _, c := range sent {
		t, _ := c["type"].(string)
		if slices.Contains(hubsConditions, t) {
			hubs, there := own[t]
			delete(own, t)
			if !there {
				continue
			}
			c = hubs
		}
		all = append(all, c)
	}
	for _, t := range slices.Sorted(maps.Keys(own)) {
		all = append(all, own[t])
	}
	return all
}
