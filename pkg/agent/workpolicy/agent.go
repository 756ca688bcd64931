package workpolicy

import (
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"
)

// Label marks an object with any name as one that an agent needs. The manifests in deploy/agent have it.
const Label = "hawser.dev/agent"

// agentName is the prefix of the names of agents' objects: alone, or followed by "-" and more.
const agentName = "hawser-agent"

// ClaimsName is the name of the ConfigMap that agents have in their namespace; see package hubidentity.
const ClaimsName = agentName + "-identities"

// LeaseName returns the name of the agents' Lease with this suffix.
func LeaseName(suffix string) string { return agentName + "-" + suffix }

// Agent identifies the agent's own objects. By their names it also recognizes other agents.
type Agent struct {
	// Namespace is the namespace of the agent; "" if it has none.
	Namespace string
	// Account is the service account that the agent uses on the cluster; zero if there is none, or it is unknown.
	Account types.NamespacedName
}

// appliedWorks is the resource of the agents' records; its CustomResourceDefinition is protected too.
const appliedWorks = "appliedmanifestworks"

// named reports whether an agent needs the object with that name.
func (o Agent) named(id workv1.ResourceIdentifier) bool {
	switch {
	case servesAgents(id):
		return true
	case isNamespace(id) && id.Name == o.Namespace:
		return true
	case id.Group == "" && id.Resource == "serviceaccounts" && o.Account != types.NamespacedName{} && o.Account == types.NamespacedName{Namespace: id.Namespace, Name: id.Name}:
		return true
	}
	return id.Name == agentName || strings.HasPrefix(id.Name, agentName+"-")
}

// servesAgents reports whether an object is a record of agents, or configures how the API server serves
// resources that agents use. With an APIService of such a group another server would answer, and all these
// objects would disappear.
func servesAgents(id workv1.ResourceIdentifier) bool {
	switch {
	case id.Group == workv1.GroupName && id.Resource == appliedWorks:
		return true
	case id.Group == apiextensionsv1.GroupName && id.Resource == "customresourcedefinitions":
		return id.Name == appliedWorks+"."+workv1.GroupName
	case id.Group != "apiregistration.k8s.io" || id.Resource != "apiservices":
		return false
	}
	_, group, _ := strings.Cut(id.Name, ".")
	switch group {
	case "", workv1.GroupName, "coordination.k8s.io", "authorization.k8s.io", "admissionregistration.k8s.io", "apiregistration.k8s.io", apiextensionsv1.GroupName:
		return true
	}
	return false
}

// marked reports whether an object or a manifest has the label of agents.
func marked(o *unstructured.Unstructured) bool {
	labels := o.GetLabels()
	_, has := labels[Label]
	_, former := labels[formerLabel]
	return has || former
}

// isNamespace reports whether an object is a namespace, or OpenShift's view of one: deleting that view deletes
// the namespace.
func isNamespace(id workv1.ResourceIdentifier) bool {
	return id.Group == "" && id.Resource == "namespaces" || id.Group == "project.openshift.io" && id.Resource == "projects"
}

// RefusedError means that a work may not have an object.
type RefusedError struct {
	Object workv1.ResourceIdentifier
	// Hub is the hub to which the owner of the cluster denies it; "" if an agent needs it.
	Hub string
}

// IsAgentObject reports whether an agent needs the object. Rules of the cluster's owner cannot allow it.
func (e *RefusedError) IsAgentObject() bool { return e.Hub == "" }

// Error names the object, the reason and the remedy.
func (e *RefusedError) Error() string {
	if e.IsAgentObject() {
		return fmt.Sprintf("%s is an object that agents on this cluster need, so no work may have it. Remove the manifest from the work, or choose a name that does not begin with %s and no label %s",
			describe(e.Object), agentName, Label)
	}
	return fmt.Sprintf("the owner of this cluster does not let works of hub %q have %s. Remove the manifest from the work, or have the owner change the file of --policy-file", e.Hub, describe(e.Object))
}

func describe(id workv1.ResourceIdentifier) string {
	s := id.Resource
	if id.Group != "" {
		s += "." + id.Group
	}
	if id.Namespace != "" {
		return s + " " + id.Namespace + "/" + id.Name
	}
	return s + " " + id.Name
}
