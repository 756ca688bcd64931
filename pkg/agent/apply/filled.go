package apply

import (
	"bytes"
	"encoding/base64"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// FilledField is a field that a controller, a binder or an injector sets in objects of others after their creation.
// If the manifest does not have it and managedFields assign it to another manager, Update leaves it unchanged.
type FilledField struct {
	// Group and Kind apply to all versions; no Kind means all kinds.
	Group, Kind string
	// Path has the names of fields from the top of the object, joined by dots; [] means each item of a list. It
	// includes everything below the field. The parent of the field must be in the manifest.
	Path string
	// By names the program that sets it.
	By string
	// Whole: the value below is atomic. It stays only if the object has all values of the manifest in the field.
	// For example, the uid of one claim is wrong beside the name of another.
	Whole bool
	// Once: the server never removes it again, so it stays even if no manager owns it, as with values set by
	// admission.
	Once bool
	// Early: the server or admission sets a value at the creation, before the controller does. A later change of it
	// is no drift.
	Early bool
	// Blank: manifests contain a placeholder for the field: "", or the text Cg== in generated manifests. It
	// counts as absent.
	Blank bool
}

// filledFields is the only list of such fields. docs/ocm.md has it as a table, which a test compares. Another
// test checks with a real API server for all its kinds that each field exists. It does not contain:
//   - labels, annotations and finalizers, which are merged;
//   - kinds of which only those are written (Namespace, Pod, ServiceAccount);
//   - fields that the server keeps if an update omits them (addresses and ports of a Service, the user of a
//     CertificateSigningRequest);
//   - replicas: ServerSideApply has ignoreFields for sharing them with an autoscaler.
var filledFields = []FilledField{
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

// FilledFields returns the table of fields that Update leaves to other managers.
func FilledFields() []FilledField { return slices.Clone(filledFields) }

// filledOf returns the rows for a kind.
func filledOf(kind schema.GroupKind) []FilledField {
	var rows []FilledField
	for _, r := range filledFields {
		if r.Kind == "" || r.Group == kind.Group && r.Kind == kind.Kind {
			rows = append(rows, r)
		}
	}
	return rows
}

// has reports whether the row covers a path or a parent of it. steps is the number of steps of the path that
// lead to the field.
func (f FilledField) has(at fieldpath.Path) (steps int, ok bool) {
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

// vacate removes placeholder texts of a field from a manifest.
func (f FilledField) vacate(in any, names []string) {
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

// blankText reports whether a text decodes from base64 to white space only.
func blankText(text string) bool {
	b, err := base64.StdEncoding.DecodeString(text)
	return err == nil && len(bytes.TrimSpace(b)) == 0
}
