package registration

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/pkg/codec"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// agentRequest is a request of an agent with its parsed fields.
type agentRequest struct {
	what    codec.EventType
	cluster string
	// user and groups are the client as the broker authenticated it. bootstrap: the client acts for no cluster, and
	// may only request that one joins.
	user      string
	groups    []string
	bootstrap bool
	// issued is the issue time of the client's certificate, zero without one.
	issued time.Time
	// sent is the object in the event. No field of it is trusted.
	sent sentObject
}

// sentObject is the object of an event.
type sentObject struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	// raw is the whole object as JSON.
	raw []byte
}

// readRequest reads a request. The error is sent to the client.
func readRequest(m *hawserv1.AgentRequest) (a agentRequest, err error) {
	a = agentRequest{cluster: m.GetCluster(), user: m.GetUser(), groups: m.GetGroups(), bootstrap: m.GetBootstrap(), issued: issuedOf(m.GetIssued())}
	e, err := codec.Unmarshal(m.GetEvent())
	if err != nil {
		return a, apierrors.NewBadRequest("the event cannot be read: " + err.Error())
	}
	if a.what, err = codec.ParseEventType(e.Type()); err != nil {
		return a, apierrors.NewBadRequest(err.Error())
	}
	named, _, err := codec.StringExtension(e, codec.ExtClusterName)
	if err != nil || named != a.cluster || a.cluster == "" {
		return a, apierrors.NewBadRequest(fmt.Sprintf("the event names cluster %q, but its client is of cluster %q", named, a.cluster))
	}
	if most := codec.MaxRequested(a.what); len(e.Data()) > most {
		return a, a.tooLarge(len(e.Data()), most)
	}
	if err := utiljson.Unmarshal(e.Data(), &a.sent); err != nil {
		return a, apierrors.NewBadRequest("the object in the event is not JSON of a Kubernetes object")
	}
	a.sent.raw = e.Data()
	return a, nil
}

// resource returns the API resource of the request, as refusals name it.
func (a agentRequest) resource() schema.GroupResource {
	if a.what.DataType == codec.TokenRequests {
		return schema.GroupResource{Resource: "serviceaccounts/token"}
	}
	return schema.GroupResource{Group: a.what.DataType.Group, Resource: a.what.DataType.Resource}
}

// forbidden returns a permanent refusal of a request.
func (a agentRequest) forbidden(format string, args ...any) error {
	return apierrors.NewForbidden(a.resource(), a.sent.Metadata.Name, fmt.Errorf(format, args...))
}

// invalid returns a refusal of an object that can never be accepted as it is.
func (a agentRequest) invalid(format string, args ...any) error {
	message := fmt.Sprintf(format, args...)
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Message: fmt.Sprintf("%s %q is invalid: %s", a.resource(), a.sent.Metadata.Name, message),
	}}
}

// hubState is the known state of the hub when a request is decided.
type hubState struct {
	// cluster is the ManagedCluster of the requesting cluster, nil without one.
	cluster *object
	// earliest is the earliest issue time of valid certificates of its agents.
	earliest time.Time
	// signers are the signers of add-ons besides the hub's kube-apiserver.
	signers []string
}

// errNothing means that the hub already has the requested state.
var errNothing = errors.New("nothing is to be done")

// maxStatus is the largest status on the hub in bytes.
const maxStatus = 128 << 10

// tooLarge refuses an object with more bytes than the hub keeps for the client.
func (a agentRequest) tooLarge(n, most int) error {
	what, advice := a.resource().String(), "shorten its fields"
	switch {
	case a.what.Subresource == codec.Status:
		what, advice = "the status of "+what, "report fewer claims, conditions and namespaces, with shorter texts"
	case a.what.DataType == codec.ManagedClusters:
		advice = "keep in managedClusterClientConfigs only the CA bundles that are needed, and shorten annotations"
	}
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("%s of cluster %s has %d bytes, at most %d are accepted: %s", what, a.cluster, n, most, advice))
}

// decide returns the call of the hub's API that carries out a request. A refusal is an error of the hub's API.
// errNothing: there is nothing to do.
func decide(a agentRequest, s hubState) (call, error) {
	if err := mayRequest(a, s); err != nil {
		return call{}, err
	}
	c, err := callOf(a, s)
	if err != nil {
		return call{}, err
	}
	text, err := json.Marshal(c.object)
	if err != nil {
		return call{}, a.invalid("it cannot be written")
	}
	most := codec.MaxMade
	if a.what.Subresource == codec.Status {
		most = maxStatus
	}
	if c.bytes = len(text); c.bytes > most {
		return call{}, a.tooLarge(c.bytes, most)
	}
	return c, nil
}

// callOf builds the call of a request.
func callOf(a agentRequest, s hubState) (call, error) { //nolint:cyclop // a table: data type and verb
	creates := a.what.Subresource == codec.Spec && a.what.Action == codec.CreateRequest
	updates := a.what.Subresource == codec.Spec && a.what.Action == codec.UpdateRequest
	status := a.what.Subresource == codec.Status && a.what.Action == codec.UpdateRequest
	switch d := a.what.DataType; {
	case d == codec.ManagedClusters && creates:
		return createCluster(a, s)
	case d == codec.ManagedClusters && status:
		return clusterStatus(a, s)
	case d == codec.SigningRequests && creates:
		return createCSR(a, s)
	case d == codec.KubeEvents && creates:
		return createEvent(a)
	case d == codec.KubeEvents && updates:
		return updateEvent(a)
	case d == codec.AddOnsV1Alpha1 && status:
		return addOnStatus(a, addOnsAlpha)
	case d == codec.AddOnsV1Beta1 && status:
		return addOnStatus(a, addOnsBeta)
	case d == codec.TokenRequests && creates:
		return requestToken(a)
	}
	return call{}, a.forbidden("agents may not request %s", a.what)
}

// mayRequest returns an error if the client may not make this request, whatever the object is. It is the same
// table as OCM's roles. A client with a bootstrap token may request that a cluster joins. A client with a
// certificate acts for its own cluster while the hub accepts that cluster.
func mayRequest(a agentRequest, s hubState) error {
	joins := a.what.Subresource == codec.Spec && a.what.Action == codec.CreateRequest &&
		slices.Contains([]codec.DataType{codec.ManagedClusters, codec.SigningRequests}, a.what.DataType)
	switch {
	case !a.issued.IsZero() && a.issued.Before(s.earliest):
		return a.forbidden("it was made with a certificate that was issued before %s, and such certificates are rejected: the cluster has to join again", s.earliest.UTC().Format(time.RFC3339))
	case a.user == "" && joins:
		return a.forbidden("the client is not identified: clusters join over connections with a token or a certificate")
	case a.bootstrap && strings.HasPrefix(a.user, ocm.UserPrefix):
		return a.forbidden("%s is an agent: it must use its certificate, not a token", a.user) // no correct broker sends this
	case a.bootstrap && joins:
		return nil
	case a.bootstrap:
		return a.forbidden("%s may only request that a cluster joins", a.user)
	case a.what.DataType == codec.ManagedClusters && joins:
		return nil // the ManagedCluster was deleted, or the operator issued the first certificate
	case !s.cluster.accepted():
		return a.forbidden("the hub has not accepted cluster %s", a.cluster)
	}
	return nil
}

// attributes returns the attributes of the access review of a request, as OCM's server uses them.
func attributes(a agentRequest) authorizationv1.ResourceAttributes {
	r := authorizationv1.ResourceAttributes{
		Group: a.what.DataType.Group, Resource: a.what.DataType.Resource, Namespace: a.cluster, Verb: "update",
	}
	if a.what.Action == codec.CreateRequest {
		r.Verb = "create"
	}
	if a.what.Subresource == codec.Status {
		r.Subresource = "status"
	}
	switch a.what.DataType {
	case codec.ManagedClusters:
		r.Name = a.cluster
	case codec.TokenRequests:
		r.Group, r.Resource, r.Subresource, r.Name = "", "serviceaccounts", "token", a.sent.Metadata.Name
	}
	return r
}
