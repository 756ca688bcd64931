package registration

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/earliest"
	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/pkg/codec"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// accountAnnotation names the account that requested a ManagedCluster.
const accountAnnotation = "hawser.dev/requester"

// kind is one type of objects that agents see.
type kind struct {
	dataType codec.DataType
	resource schema.GroupVersionResource
	// cluster returns the cluster that an object belongs to.
	cluster func(o metav1.Object) string
	// labels and fields are the selectors of the watch.
	labels, fields string
	// namespace is the watched namespace, "" for all.
	namespace string
	// optional: a hub may lack the type, which then has no objects.
	optional bool
}

// kinds are the types that agents see. The hub may lack some of them.
var kinds = []kind{
	{dataType: codec.ManagedClusters, resource: managedClusters, cluster: metav1.Object.GetName},
	{dataType: codec.SigningRequests, resource: signingRequests, labels: ocm.ClusterLabel, cluster: labelledCluster},
	{dataType: codec.Leases, resource: leases, fields: "metadata.name=" + ocm.LeaseName, cluster: metav1.Object.GetNamespace},
	{dataType: codec.AddOnsV1Alpha1, resource: addOnsAlpha, cluster: metav1.Object.GetNamespace, optional: true},
	{dataType: codec.AddOnsV1Beta1, resource: addOnsBeta, cluster: metav1.Object.GetNamespace, optional: true},
}

func labelledCluster(o metav1.Object) string { return o.GetLabels()[ocm.ClusterLabel] }

// object is what is kept of an object of the hub: its JSON, and the fields for decisions. It implements
// metav1.Object as far as a cache needs it.
type object struct {
	metav1.ObjectMeta
	cluster string
	json    []byte
	// requester is the user that requested a CSR through a broker. requestedBy is the requester that the object is
	// counted for. account is the account that requested the object. undecided: the CSR is not approved, denied or
	// signed.
	requester   string
	requestedBy requester
	account     string
	undecided   bool
	// bytes is the size of the object on the hub, without fields that other clients than agents write.
	bytes int
	facts *hawserv1.ManagedClusterStatus
	// rotate is the earliest issue time that a ManagedCluster requests. entries are the entries of the ConfigMap.
	rotate  time.Time
	entries map[string]string
	// period is the Lease period of a ManagedCluster in seconds.
	period int64
	// renewed is when a Lease was renewed last. hash is that of the Lease without its renewal.
	renewed metav1.MicroTime
	hash    uint64
}

// isRenewalOf reports whether a Lease differs from was in its renewal only. Agents do not need such a change: they
// write renewals, and read none.
func (o *object) isRenewalOf(was *object) bool {
	return o != nil && was != nil && o.hash != 0 && o.hash == was.hash
}

// hashSeed is the seed of hashes that do not leave this process.
var hashSeed = maphash.MakeSeed()

// accepted reports whether the hub has accepted a ManagedCluster; it returns false for nil.
func (o *object) accepted() bool { return o != nil && o.facts.GetAccepted() }

// keep reads the part of an object that agents act on. That excludes the request in a CSR, and annotations of
// other clients: GitOps tools write whole objects into those.
func (k kind) keep(u *unstructured.Unstructured) (*object, error) {
	account := u.GetAnnotations()[accountAnnotation]
	annotations := maps.Clone(u.GetAnnotations())
	maps.DeleteFunc(annotations, func(name, _ string) bool {
		switch k.dataType {
		case codec.ManagedClusters:
			return !strings.HasPrefix(name, agentAnnotations) && name != earliest.RotateAnnotation
		case codec.SigningRequests:
			return name != ocm.RequesterAnnotation
		}
		return name == corev1.LastAppliedConfigAnnotation
	})
	u.SetAnnotations(annotations)
	unstructured.RemoveNestedField(u.Object, "metadata", "managedFields")
	o := &object{cluster: k.cluster(u), ObjectMeta: metav1.ObjectMeta{
		Namespace: u.GetNamespace(), Name: u.GetName(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion(),
		DeletionTimestamp: u.GetDeletionTimestamp(),
	}}
	if k.resource == configMaps {
		o.entries, _, _ = unstructured.NestedStringMap(u.Object, "data") // nil if the data has another form
		return o, nil
	}
	var err error
	if o.json, err = json.Marshal(u.Object); err != nil {
		return nil, fmt.Errorf("encode %s %s: %w", k.resource.Resource, u.GetName(), err)
	}
	o.bytes = len(o.json)
	switch k.dataType {
	case codec.ManagedClusters:
		o.requestedBy, o.account, o.facts, o.period, o.rotate = requester{cluster: o.cluster}, account, factsOf(u), periodOf(u), rotateOf(u)
		if !o.accepted() && o.bytes > codec.MaxMade { // the object was created outside of Hawser, or before there was a limit
			for _, field := range [][]string{{"metadata", "annotations"}, {"spec", "managedClusterClientConfigs"}, {"status"}} {
				unstructured.RemoveNestedField(u.Object, field...)
			}
			o.json, err = json.Marshal(u.Object)
		}
	case codec.SigningRequests:
		o.requester, o.account = u.GetAnnotations()[ocm.RequesterAnnotation], userOf(u)
		o.requestedBy = requesterOf(o.cluster, o.account, u.GetLabels()[ocm.AddOnLabel])
		o.undecided = len(conditionsOf(u)) == 0
		unstructured.RemoveNestedField(u.Object, "spec", "request")
		o.json, err = json.Marshal(u.Object)
	case codec.Leases:
		o.renewed = renewTimeOf(u)
		u.SetResourceVersion("")
		unstructured.RemoveNestedField(u.Object, "spec", "renewTime")
		var rest []byte
		rest, err = json.Marshal(u.Object)
		o.hash = maphash.Bytes(hashSeed, rest)
	}
	return o, err
}

// userOf returns the requester of a CSR. The annotation counts only if [Registrar] created the CSR.
func userOf(u *unstructured.Unstructured) string {
	user, _, _ := unstructured.NestedString(u.Object, "spec", "username") // the hub writes it
	if user == ocm.Registrar {
		return u.GetAnnotations()[ocm.RequesterAnnotation]
	}
	return user
}

// message returns an object in the form that the broker accepts.
func (k kind) message(o *object) *hawserv1.RegistrationObject {
	return &hawserv1.RegistrationObject{
		DataType: k.dataType.String(), Cluster: o.cluster, Name: o.Name, Uid: string(o.UID), ResourceVersion: o.ResourceVersion,
		Json: o.json, Requester: o.requester, ManagedClusterStatus: o.facts,
	}
}

// factsOf returns the facts of a ManagedCluster that the broker gets beside the JSON. Accepted is the value in
// the spec, whatever a condition states.
func factsOf(u *unstructured.Unstructured) *hawserv1.ManagedClusterStatus {
	accepted, _, _ := unstructured.NestedBool(u.Object, "spec", "hubAcceptsClient") // without a valid field the cluster is not accepted
	f := &hawserv1.ManagedClusterStatus{Accepted: accepted}
	for _, c := range conditionsOf(u) {
		switch c["type"] {
		case clusterv1.ManagedClusterConditionJoined:
			f.Joined = c["status"] == string(metav1.ConditionTrue)
		case clusterv1.ManagedClusterConditionAvailable:
			f.Available, _ = c["status"].(string)
			f.AvailableSince, _ = c["lastTransitionTime"].(string)
			f.AvailableMessage, _ = c["message"].(string)
		}
	}
	return f
}

// conditionsOf returns the conditions in a status, nil if they have another form.
func conditionsOf(u *unstructured.Unstructured) []map[string]any {
	list, _, _ := unstructured.NestedFieldNoCopy(u.Object, "status", "conditions")
	return listed(list)
}

// defaultPeriod is the Lease period in seconds if the ManagedCluster sets none.
const defaultPeriod = 60

func periodOf(u *unstructured.Unstructured) int64 {
	n, _, _ := unstructured.NestedInt64(u.Object, "spec", "leaseDurationSeconds")
	return cmp.Or(max(n, 0), defaultPeriod)
}

func renewTimeOf(u *unstructured.Unstructured) (t metav1.MicroTime) {
	text, _, _ := unstructured.NestedString(u.Object, "spec", "renewTime")
	if err := t.UnmarshalQueryParameter(text); err != nil {
		return metav1.MicroTime{} // the Lease was never renewed
	}
	return t
}
