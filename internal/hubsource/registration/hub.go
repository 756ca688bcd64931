package registration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// fieldManager names the writer in managedFields.
const fieldManager = "hawser-hub-source"

// Resources of the hub's API.
var (
	managedClusters = schema.GroupVersionResource{Group: "cluster.open-cluster-management.io", Version: "v1", Resource: "managedclusters"}
	signingRequests = schema.GroupVersionResource{Group: "certificates.k8s.io", Version: "v1", Resource: "certificatesigningrequests"}
	leases          = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	kubeEvents      = schema.GroupVersionResource{Group: "events.k8s.io", Version: "v1", Resource: "events"}
	serviceAccounts = schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}
	addOnsAlpha     = schema.GroupVersionResource{Group: "addon.open-cluster-management.io", Version: "v1alpha1", Resource: "managedclusteraddons"}
	addOnsBeta      = schema.GroupVersionResource{Group: "addon.open-cluster-management.io", Version: "v1beta1", Resource: "managedclusteraddons"}
)

// verb is the verb of a call.
type verb string

const (
	create       verb = "create"
	updateStatus verb = "update"
	mergePatch   verb = "patch"
)

// call is one request to the hub's API.
type call struct {
	verb     verb
	resource schema.GroupVersionResource
	// subresource is "" for the object itself.
	subresource string
	// namespace is "" for cluster-scoped objects.
	namespace, name string
	// object is the body, or the changed fields of a patch.
	object map[string]any
	// bytes is the size of object as JSON.
	bytes int
	// asRegistrar: the call is made as [Registrar].
	asRegistrar bool
	// labelled is a label that the object must already have.
	labelled [2]string
}

// do makes a call, and returns the object as the hub has it then. Errors are errors of the hub's API.
func (h Hub) do(ctx context.Context, c call) (*unstructured.Unstructured, error) {
	client := h.Own
	if c.asRegistrar {
		client = h.Registrar
	}
	at := client.Resource(c.resource).Namespace(c.namespace) // "" for cluster-scoped objects
	if c.labelled[0] != "" {
		o, err := at.Get(ctx, c.name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		if o.GetLabels()[c.labelled[0]] != c.labelled[1] {
			why := fmt.Errorf("it does not have the label %s=%s", c.labelled[0], c.labelled[1])
			return nil, fmt.Errorf("%w: %w", errUnlabelled, apierrors.NewForbidden(c.resource.GroupResource(), c.name, why))
		}
	}
	object := &unstructured.Unstructured{Object: c.object}
	var sub []string
	if c.subresource != "" {
		sub = []string{c.subresource}
	}
	switch c.verb {
	case create:
		return at.Create(ctx, object, metav1.CreateOptions{FieldManager: fieldManager}, sub...)
	case updateStatus:
		return at.UpdateStatus(ctx, object, metav1.UpdateOptions{FieldManager: fieldManager})
	case mergePatch:
		patch, err := json.Marshal(c.object)
		if err != nil {
			return nil, fmt.Errorf("encode the patch of %s: %w", c.name, err)
		}
		return at.Patch(ctx, c.name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager}, sub...)
	}
	return nil, fmt.Errorf("bug: verb %q is not supported", c.verb)
}

// errUnlabelled marks a refusal by hub-source itself, not by the hub.
var errUnlabelled = errors.New("the object does not have the label that hub-source requires")

// statusOf returns the Status in an error of the hub. Without one it returns ServiceUnavailable: the hub did
// not answer.
func statusOf(err error) metav1.Status {
	var known apierrors.APIStatus
	if errors.As(err, &known) {
		return known.Status()
	}
	reason := "the hub does not answer"
	if errors.Is(err, errTooLate) {
		reason = err.Error()
	}
	return metav1.Status{
		Status: metav1.StatusFailure, Reason: metav1.StatusReasonServiceUnavailable, Code: http.StatusServiceUnavailable, Message: reason,
	}
}

// errTooLate ends a request that waited so long that its client has given up.
var errTooLate = errors.New("hub-source has more requests than the hub answers, try again")
