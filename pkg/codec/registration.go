package codec

import (
	"encoding/json"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// The data types of registration. Agents publish requests that only the hub can fulfil, and receive objects of
// the hub.
var (
	ManagedClusters = DataType{Group: "cluster.open-cluster-management.io", Version: "v1", Resource: "managedclusters"}
	SigningRequests = DataType{Group: "certificates.k8s.io", Version: "v1", Resource: "certificatesigningrequests"}
	Leases          = DataType{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	KubeEvents      = DataType{Group: "events.k8s.io", Version: "v1", Resource: "events"}
	AddOnsV1Alpha1  = DataType{Group: "addon.open-cluster-management.io", Version: "v1alpha1", Resource: "managedclusteraddons"}
	AddOnsV1Beta1   = DataType{Group: "addon.open-cluster-management.io", Version: "v1beta1", Resource: "managedclusteraddons"}
	TokenRequests   = DataType{Group: "authentication.k8s.io", Version: "v1", Resource: "tokenrequests"}
)

// Registrations is the subscription of the source that serves registration: the requests of all agents. No
// event has this type.
var Registrations = DataType{Group: "dev.hawser", Version: "v1", Resource: "registrations"}

// Types of the events between that source and the broker, outside the grammar.
const (
	TypeRegistrationRequest = "dev.hawser.registration.v1.request"
	TypeRegistrationObjects = "dev.hawser.registration.v1.objects"
	TypeRegistrationAnswer  = "dev.hawser.registration.v1.answer"
	TypeRegistrationKeys    = "dev.hawser.registration.v1.keys"
)

// Verb is the kind of request in an event of an agent.
type Verb struct {
	Subresource Subresource
	Action      Action
}

// RegistrationRow holds the protocol rules of one data type of registration.
type RegistrationRow struct {
	DataType DataType
	// Requests are the requests that an agent may send, besides resync requests.
	Requests []Verb
	// Streamed: agents subscribe to the type, and may send resync requests.
	Streamed bool
	// Joining: clusters join with this type. An agent without a certificate may subscribe and create too. Its
	// objects are visible to a cluster that the hub has not accepted.
	Joining bool
}

var (
	creates      = Verb{Spec, CreateRequest}
	updates      = Verb{Spec, UpdateRequest}
	updateStatus = Verb{Status, UpdateRequest}
)

// registration is the table of these types, sorted by name.
var registration = []RegistrationRow{
	{DataType: AddOnsV1Alpha1, Requests: []Verb{updateStatus}, Streamed: true},
	{DataType: AddOnsV1Beta1, Requests: []Verb{updateStatus}, Streamed: true},
	{DataType: TokenRequests, Requests: []Verb{creates}, Streamed: true},
	{DataType: SigningRequests, Requests: []Verb{creates}, Streamed: true, Joining: true},
	{DataType: ManagedClusters, Requests: []Verb{creates, updateStatus}, Streamed: true, Joining: true},
	{DataType: Leases, Requests: []Verb{updates}, Streamed: true},
	{DataType: KubeEvents, Requests: []Verb{creates, updates}},
}

// Registration returns the row of a data type of registration.
func Registration(d DataType) (RegistrationRow, bool) {
	for i := range registration {
		if registration[i].DataType == d {
			return registration[i], true
		}
	}
	return RegistrationRow{}, false
}

// RegistrationTypes returns the data types of registration, sorted by name.
func RegistrationTypes() []DataType {
	all := make([]DataType, len(registration))
	for i := range registration {
		all[i] = registration[i].DataType
	}
	return all
}

// MayPublish reports whether an agent may publish events of this type, which has the row's data type. bootstrap: the
// agent has no certificate yet.
func (r RegistrationRow) MayPublish(t EventType, bootstrap bool) bool {
	v := Verb{t.Subresource, t.Action}
	switch {
	case bootstrap && !r.Joining:
		return false
	case v == Verb{Spec, ResyncRequest}:
		return r.Streamed
	case bootstrap:
		return v == creates
	}
	return slices.Contains(r.Requests, v)
}

const (
	// MaxMade is the maximum size, in bytes, of an object that the hub makes for an agent. It fits a CA bundle of 8
	// KiB.
	MaxMade = 16 << 10
	// MaxReported is the maximum size, in bytes, of an object whose status an agent reports. The object includes
	// fields of others, such as 256 KiB of annotations.
	MaxReported = 512 << 10
)

// MaxRequested returns the maximum size, in bytes, of the object in an event of an agent.
func MaxRequested(t EventType) int {
	if t.Subresource == Status {
		return MaxReported
	}
	return MaxMade
}

// RegistrationEvent reports whether t is the type of an event between the broker and the source that serves
// registration.
func RegistrationEvent(t string) bool {
	switch t {
	case TypeRegistrationRequest, TypeRegistrationObjects, TypeRegistrationAnswer, TypeRegistrationKeys:
		return true
	}
	return false
}

// NewRegistrationRequest builds the event of a registration request.
func NewRegistrationRequest(p SyncParams, m *hawserv1.RegistrationRequest) (Event, error) {
	return p.event(TypeRegistrationRequest, m)
}

// ParseRegistrationRequest reads the event of a registration request. The error is that of [ParseCheckpoint].
func ParseRegistrationRequest(e Event) (*hawserv1.RegistrationRequest, error) {
	return parseMessage(e, TypeRegistrationRequest, &hawserv1.RegistrationRequest{})
}

// NewRegistrationObjects builds the event of registration objects.
func NewRegistrationObjects(p SyncParams, m *hawserv1.RegistrationObjects) (Event, error) {
	return p.event(TypeRegistrationObjects, m)
}

// ParseRegistrationObjects reads the event of registration objects. Each object has a streamed data type of
// registration, a cluster and a name. For a ManagedCluster cluster and name are the same. The error is that of
// [ParseCheckpoint].
func ParseRegistrationObjects(e Event) (*hawserv1.RegistrationObjects, error) {
	m, err := parseMessage(e, TypeRegistrationObjects, &hawserv1.RegistrationObjects{})
	if err != nil {
		return nil, err
	}
	for _, o := range m.GetObjects() {
		if err := checkObject(o); err != nil {
			return nil, err
		}
	}
	for cluster, at := range m.GetEarliestIssues() {
		if err := checkNames(cluster); err != nil {
			return nil, err
		}
		if cluster == "" || at.CheckValid() != nil {
			return nil, attributeError("data", cluster, "an earliest issue time needs cluster and time")
		}
	}
	return m, nil
}

func checkObject(o *hawserv1.RegistrationObject) error {
	d, err := ParseDataType(o.GetDataType())
	if row, ok := Registration(d); err != nil || !ok || !row.Streamed || d == TokenRequests {
		return attributeError("data", o.GetDataType(), "is not a data type of objects that a hub has")
	}
	if o.GetCluster() == "" || o.GetName() == "" {
		return attributeError("data", o.GetDataType(), "an object needs cluster and name")
	}
	if d == ManagedClusters && o.GetCluster() != o.GetName() {
		return attributeError("data", o.GetName(), "is a ManagedCluster of cluster "+o.GetCluster())
	}
	return checkNames(o.GetCluster(), o.GetName(), o.GetUid(), o.GetResourceVersion(), o.GetRequester())
}

// NewRegistrationAnswer builds the event of a registration answer.
func NewRegistrationAnswer(p SyncParams, m *hawserv1.RegistrationAnswer) (Event, error) {
	return p.event(TypeRegistrationAnswer, m)
}

// ParseRegistrationAnswer reads the event of a registration answer. The error is that of [ParseCheckpoint].
func ParseRegistrationAnswer(e Event) (*hawserv1.RegistrationAnswer, error) {
	return parseMessage(e, TypeRegistrationAnswer, &hawserv1.RegistrationAnswer{})
}

// NewRegistrationKeys builds the event of registration keys.
func NewRegistrationKeys(p SyncParams, m *hawserv1.RegistrationKeys) (Event, error) {
	return p.event(TypeRegistrationKeys, m)
}

// ParseRegistrationKeys reads the event of registration keys. The error is that of [ParseCheckpoint].
func ParseRegistrationKeys(e Event) (*hawserv1.RegistrationKeys, error) {
	return parseMessage(e, TypeRegistrationKeys, &hawserv1.RegistrationKeys{})
}

func parseMessage[M proto.Message](e Event, eventType string, into M) (m M, err error) {
	if err := syncPayload(e, eventType, into); err != nil {
		return m, err
	}
	return into, nil
}

// APIError is an error of the hub's API: those fields of a Kubernetes Status that a client acts upon.
type APIError struct {
	Code    int    `json:"code,omitempty"` // an HTTP status
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	Details struct {
		RetryAfterSeconds int `json:"retryAfterSeconds,omitempty"`
	} `json:"details,omitzero"`
}

// maxAPIText bounds the text of an APIError, in bytes. The text is a header value; the listeners cut it after
// one kilobyte, and cut text is no valid JSON. maxAPIReason bounds the reason before quoting, in bytes; quoting
// takes at most six bytes per byte.
const (
	maxAPIText   = 1000
	maxAPIReason = 128
)

// Text returns the error in the form that OCM clients read from the message of a gRPC status. The form is
// {"ErrStatus":{…}}, a Kubernetes StatusError as Go encodes it. A message that is too long is cut.
func (e APIError) Text() string {
	e.Reason, e.Message = cut(shown(e.Reason), maxAPIReason), cut(shown(e.Message), maxAPIText)
	text := e.quoted()
	for len(text) > maxAPIText && e.Message != "" {
		e.Message = cut(e.Message, len(e.Message)*3/4)
		text = e.quoted()
	}
	return text
}

// cut returns the beginning of a text, at most the given number of bytes.
func cut(text string, most int) string {
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}

func (e APIError) quoted() string {
	text, err := json.Marshal(struct {
		ErrStatus any `json:"ErrStatus"`
	}{struct {
		Metadata struct{} `json:"metadata"`
		Status   string   `json:"status"`
		APIError
	}{Status: "Failure", APIError: e}})
	if err != nil {
		panic("bug: plain fields are not JSON: " + err.Error())
	}
	return string(text)
}

// ParseAPIError parses the text of an [APIError]. ok is false if the text is not one.
func ParseAPIError(text string) (e APIError, ok bool) {
	var m struct{ ErrStatus *APIError }
	if json.Unmarshal([]byte(text), &m) != nil || m.ErrStatus == nil {
		return APIError{}, false
	}
	return *m.ErrStatus, true
}

// ParseAPIStatus reads the JSON of a Kubernetes Status. If the JSON is invalid, the returned error states that.
func ParseAPIStatus(status []byte) APIError {
	var e APIError
	if err := json.Unmarshal(status, &e); err != nil || e.Code == 0 && e.Reason == "" {
		return APIError{Code: 500, Reason: "InternalError", Message: "the hub's rejection cannot be read"}
	}
	return e
}
