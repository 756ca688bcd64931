package registration

import (
	"cmp"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// addOnStatus updates the status of an add-on of the requesting cluster. The hub refuses a version that is not
// the present one.
func addOnStatus(a agentRequest, resource schema.GroupVersionResource) (call, error) {
	if err := a.inOwnNamespace(); err != nil {
		return call{}, err
	}
	status, err := statusIn(a.sent.raw)
	if err != nil {
		return call{}, a.invalid("%v", err)
	}
	meta := map[string]any{"namespace": a.cluster, "name": a.sent.Metadata.Name, "resourceVersion": a.sent.Metadata.ResourceVersion}
	if uid := a.sent.Metadata.UID; uid != "" {
		meta["uid"] = string(uid)
	}
	return call{verb: updateStatus, resource: resource, subresource: "status", namespace: a.cluster, name: a.sent.Metadata.Name, object: map[string]any{
		"apiVersion": resource.GroupVersion().String(), "kind": "ManagedClusterAddOn", "metadata": meta, "status": status,
	}}, nil
}

// inOwnNamespace refuses an object outside of the namespace of the requesting cluster.
func (a agentRequest) inOwnNamespace() error {
	if ns := a.sent.Metadata.Namespace; ns != a.cluster {
		return a.forbidden("it is in namespace %q, that of cluster %s is %s", ns, a.cluster, a.cluster)
	}
	return a.named()
}

// named refuses an object without a name, or with a name that is more than one part of a path.
func (a agentRequest) named() error {
	name := a.sent.Metadata.Name
	if name == "" {
		return a.invalid("it has no name; the client has to choose one")
	}
	if wrong := content.IsPathSegmentName(name); len(wrong) > 0 {
		return a.invalid("its name %s", strings.Join(wrong, ", "))
	}
	return nil
}

// Label of the service accounts for which an agent may request tokens. Controllers of add-ons create these
// accounts.
const (
	tokenLabel      = "addon.open-cluster-management.io/token-infrastructure"
	tokenLabelValue = "true"
)

// requestToken requests a token of a service account of an add-on. The hub rejects a uid in the request, by
// which the client recognizes the answer, so the call has none.
func requestToken(a agentRequest) (call, error) {
	a.sent.Metadata.Namespace = cmp.Or(a.sent.Metadata.Namespace, a.cluster) // it may be absent
	if err := a.inOwnNamespace(); err != nil {
		return call{}, err
	}
	var sent struct {
		Spec struct {
			Audiences         []string `json:"audiences"`
			ExpirationSeconds *int64   `json:"expirationSeconds"`
		} `json:"spec"`
	}
	if err := utiljson.Unmarshal(a.sent.raw, &sent); err != nil {
		return call{}, a.invalid("its spec cannot be read")
	}
	spec := map[string]any{"audiences": textsOf(sent.Spec.Audiences)}
	if sent.Spec.ExpirationSeconds != nil {
		spec["expirationSeconds"] = *sent.Spec.ExpirationSeconds
	}
	return call{
		verb: create, resource: serviceAccounts, subresource: "token", namespace: a.cluster, name: a.sent.Metadata.Name,
		labelled: [2]string{tokenLabel, tokenLabelValue},
		object: map[string]any{
			"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
			"metadata": map[string]any{"name": a.sent.Metadata.Name, "namespace": a.cluster},
			"spec":     spec,
		},
	}, nil
}
