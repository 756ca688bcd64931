package apply

import (
	"bytes"
	"encoding/base64"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// Filled is a field that a controller, a binder or an injector sets in objects of
// others after they were made. Where the manifest does not have it, and
// managedFields give it to another manager, Update leaves it as it is.
type Filled struct {
	// Group and Kind are of any version; no Kind stands for all kinds.
	Group, Kind string
	// Path names fields from the top of the object, joined by dots; [] stands for each item of a list.
	// What is below the field belongs to it. The field that has it must be in the manifest.
	Path string
	// By is what sets it.
	By string
	// Whole: what is below is of one piece. It stays only where all that the manifest says of
	// the field is so on the object: the uid of one claim means nothing beside the name of another.
	Whole bool
	// Once: the server never takes it off again, so it stays also where no manager has it, as of
	// what admission sets.
	Once bool
	// Early: the server or admission give it a value when the object is made, before the controller
	// does. So another value later is no drift.
	Early bool
	// Blank: manifests hold the place of the field with a text that says nothing, "" or the Cg== of
	// scaffolds. It counts as none.
	Blank bool
}

// filledFields is the one list of such fields; docs/ocm.md has it as a table, which a
// test compares. Another test asks a real API server for all its kinds, and that
// each field exists. Not in it are: labels, annotations and finalizers, which are
// merged; kinds of which only those are written (Namespace, Pod, ServiceAccount);
// what the server itself keeps when an update leaves it out (the addresses and
// ports of a Service, the user of a CertificateSigningRequest); and replicas, for
// sharing them with an autoscaler is what ServerSideApply has ignoreFields for.
var filledFields = []Filled{
	{Path: "status", By: "the controller of the kind, also where the definition has no status subresource"},

	{Group: "", Kind: "PersistentVolume", Path: "spec.claimRef", By: "the binder of kube-controller-manager", Whole: true},
	{Group: "", Kind: "PersistentVolume", Path: "spec.volumeAttributesClassName", By: "external-resizer"},
	{Group: "", Kind: "PersistentVolumeClaim", Path: "spec.volumeName", By: "the binder of kube-controller-manager, external-provisioner", Blank: true},
	{Group: "", Kind: "PersistentVolumeClaim", Path: "spec.storageClassName", By: "admission, and kube-controller-manager once there is a default class", Once: true, Early: true},
	{Group: "", Kind: "Endpoints", Path: "subsets", By: "the endpoints controller, for a Service with a selector"},
	{Group: "", Kind: "Node", Path: "spec.podCIDR", By: "the allocator of kube-controller-manager or of the cloud"},
	{Group: "", Kind: "Node", Path: "spec.podCIDRs", By: "the allocator of kube-controller-manager or of the cloud"},
	{Group: "", Kind: "Node", Path: "spec.providerID", By: "kubelet, cloud-controller-manager"},
	{Group: "", Kind: "Node", Path: "spec.taints", By: "the node lifecycle controller, cloud-controller-manager"},
	{Group: "", Kind: "Node", Path: "spec.unschedulable", By: "kubectl cordon and drain, autoscalers, upgrades"},

	{Group: "admissionregistration.k8s.io", Kind: "MutatingWebhookConfiguration", Path: "webhooks[].clientConfig.caBundle", By: "cainjector, service-ca, the webhook's own controller", Blank: true},
	{Group: "admissionregistration.k8s.io", Kind: "ValidatingWebhookConfiguration", Path: "webhooks[].clientConfig.caBundle", By: "cainjector, service-ca, the webhook's own controller", Blank: true},
	{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Path: "spec.conversion.webhook.clientConfig.caBundle", By: "cainjector, service-ca, the webhook's own controller", Blank: true},
	{Group: "apiregistration.k8s.io", Kind: "APIService", Path: "spec.caBundle", By: "cainjector, service-ca, the service's own controller", Blank: true},

	{Group: "batch", Kind: "Job", Path: "spec.suspend", By: "queues such as Kueue", Early: true},
	{Group: "batch", Kind: "Job", Path: "spec.template.metadata", By: "queues, before they let the Job run"},
	{Group: "batch", Kind: "Job", Path: "spec.template.spec.affinity", By: "queues, before they let the Job run"},
	{Group: "batch", Kind: "Job", Path: "spec.template.spec.nodeSelector", By: "queues, before they let the Job run"},
	{Group: "batch", Kind: "Job", Path: "spec.template.spec.schedulingGates", By: "queues, before they let the Job run"},
	{Group: "batch", Kind: "Job", Path: "spec.template.spec.tolerations", By: "queues, before they let the Job run"},
	{Group: "coordination.k8s.io", Kind: "Lease", Path: "spec", By: "the holder"},
	{Group: "storage.k8s.io", Kind: "CSINode", Path: "spec.drivers", By: "kubelet"},
	{Group: "storage.k8s.io", Kind: "CSIStorageCapacity", Path: "capacity", By: "external-provisioner"},
	{Group: "storage.k8s.io", Kind: "CSIStorageCapacity", Path: "maximumVolumeSize", By: "external-provisioner"},

	{Group: "argoproj.io", Kind: "Application", Path: "operation", By: "Argo CD, for a sync that is under way"},
	{Group: "snapshot.storage.k8s.io", Kind: "VolumeSnapshot", Path: "spec.volumeSnapshotClassName", By: "snapshot-controller, if there is a default class"},
	{Group: "snapshot.storage.k8s.io", Kind: "VolumeSnapshotContent", Path: "spec.volumeSnapshotRef", By: "the binder of snapshot-controller", Whole: true},
}

// FilledFields returns the table of fields that Update leaves to others.
func FilledFields() []Filled { return slices.Clone(filledFields) }

// filledOf returns the rows for a kind.
func filledOf(kind schema.GroupKind) []Filled {
	var rows []Filled
	for _, r := range filledFields {
		if r.Kind == "" || r.Group == kind.Group && r.Kind == kind.Kind {
			rows = append(rows, r)
		}
	}
	return rows
}

// has reports whether the row is about a place or about something above it, and
// how many steps of the place lead to the field.
func (f Filled) has(at fieldpath.Path) (steps int, ok bool) {
	for _, name := range strings.Split(f.Path, ".") {
		name, each := strings.CutSuffix(name, "[]")
		if steps == len(at) || at[steps].FieldName == nil || *at[steps].FieldName != name {
			return 0, false
		}
		steps++
		if each {
			if steps == len(at) || at[steps].FieldName != nil {
				return 0, false
			}
			steps++
		}
	}
	return steps, true
}

// vacate takes texts out of a manifest that only hold the place of a field.
func (f Filled) vacate(in any, names []string) {
	name, each := strings.CutSuffix(names[0], "[]")
	m, _ := in.(map[string]any)
	switch text, isText := m[name].(string); {
	case len(names) == 1 && isText && blankText(text):
		delete(m, name)
	case len(names) > 1 && !each:
		f.vacate(m[name], names[1:])
	case len(names) > 1:
		items, _ := m[name].([]any)
		for _, item := range items {
			f.vacate(item, names[1:])
		}
	}
}

// blankText reports whether a text, or what it says in base64, is nothing but white space.
func blankText(text string) bool {
	b, err := base64.StdEncoding.DecodeString(text)
	return err == nil && len(bytes.TrimSpace(b)) == 0
}
