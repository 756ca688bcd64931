package core

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/kubeerror"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/transport"
)

// ConditionDelivered is the one condition type of a ManifestWork that the hub
// source owns. It is False while something keeps the work from its cluster, or the
// cluster's report from the work. Else it is True, of the last version for which the
// cluster has answered; before it has answered, it is not there.
const ConditionDelivered = "Delivered"

// ReasonClusterAnswered is the reason of Delivered=True.
const ReasonClusterAnswered = "ClusterAnswered"

// The reasons of Delivered=False.
const (
	// ReasonTooLarge: the work can never be sent.
	ReasonTooLarge = "TooLarge"
	// ReasonNameConflict: another source owns a work of this name on the cluster.
	ReasonNameConflict = "NameConflict"
	// ReasonRejected: the broker does not take this work.
	ReasonRejected = "Rejected"
	// ReasonVersionConflict: the broker holds a newer version of the work.
	ReasonVersionConflict = "VersionConflict"
	// ReasonQuotaExceeded: the hub, or the cluster, has as much as it may have in the broker.
	ReasonQuotaExceeded = "QuotaExceeded"
	// ReasonBrokerFull: the broker has no room on its disk, whoever asks.
	ReasonBrokerFull = "BrokerFull"
	// ReasonStatusRejected: the hub does not take the cluster's report.
	ReasonStatusRejected = "StatusRejected"
	// ReasonStatusTooLarge: the hub has no room for the cluster's report.
	ReasonStatusTooLarge = "StatusTooLarge"
	// ReasonAgentDisconnected: nobody knows whether the cluster has this version, and its agent
	// says nothing.
	ReasonAgentDisconnected = "AgentDisconnected"
	// ReasonAgentNeverConnected: no agent ever came for the cluster.
	ReasonAgentNeverConnected = "AgentNeverConnected"
)

// Reasons lists them for the metric.
var Reasons = []string{ReasonTooLarge, ReasonNameConflict, ReasonRejected, ReasonQuotaExceeded, ReasonBrokerFull, ReasonVersionConflict, ReasonStatusRejected, ReasonStatusTooLarge, ReasonAgentDisconnected, ReasonAgentNeverConnected}

// longestMessage keeps a condition readable, whatever a peer's error says.
const longestMessage = 1024

// problem is a reason of Delivered=False.
type problem struct {
	reason, message string
	generation      int64
}

// deliveryProblems is what is known to be wrong with a work; until known, a condition
// that an earlier process wrote stays.
type deliveryProblems struct {
	known               bool
	spec, status, agent *problem
}

func (b deliveryProblems) problem() *problem { return cmp.Or(b.spec, b.status, b.agent) }

// problemOnHub is what the condition Delivered of a work says on the hub, nil if it has none of these reasons.
func problemOnHub(w *work, reasons ...string) *problem {
	c := meta.FindStatusCondition(w.hub.object.Status.Conditions, ConditionDelivered)
	if c == nil || !slices.Contains(reasons, c.Reason) {
		return nil
	}
	return &problem{c.Reason, c.Message, c.ObservedGeneration}
}

func newProblem(o *workv1.ManifestWork, reason, message string) *problem {
	if len(message) > longestMessage {
		message = strings.ToValidUTF8(message[:longestMessage-3], "") + "..."
	}
	return &problem{reason: reason, message: message, generation: o.Generation}
}

func tooLarge(o *workv1.ManifestWork) *problem {
	return newProblem(o, ReasonTooLarge, fmt.Sprintf(
		"the manifests are %d bytes, at most %d can be delivered: %s", manifestwork.ManifestsSize(o), manifestwork.MaxManifestsSize,
		cmp.Or(manifestwork.OneTooLarge(o.Spec.Workload.Manifests, manifestwork.MaxManifestsSize), "split them over several ManifestWorks")))
}

func statusTooLarge(o *workv1.ManifestWork) *problem {
	return newProblem(o, ReasonStatusTooLarge, fmt.Sprintf(
		"the hub has no room for the status that the cluster reported, the one shown is older: a work, its annotations and its status may have %d bytes together: split the work, or ask for fewer feedback values", kubeerror.MaxObject))
}

// disconnectedProblem is what a work says whose cluster has not confirmed the present version, behind a broker
// that keeps nothing.
func disconnectedProblem(o *workv1.ManifestWork, since time.Time, ever bool) *problem {
	what := fmt.Sprintf("the agent of cluster %q has not been heard since %s UTC", o.Namespace, since.UTC().Format(time.DateTime))
	if !ever {
		what = fmt.Sprintf("nothing was heard of an agent of cluster %q since %s UTC: is the namespace misspelt?", o.Namespace, since.UTC().Format(time.DateTime))
	}
	return newProblem(o, ReasonAgentDisconnected, what+
		", and nobody knows whether it has this version: check that it runs and reaches the MQTT broker; the work is published again until it answers"+
		howToEnd(o, fmt.Sprintf(`kubectl patch manifestwork %s -n %s --type=merge -p '{"metadata":{"finalizers":null}}'`, o.Name, o.Namespace)))
}

// offline is the same behind a broker that keeps works, and says that no agent is connected.
func offline(o *workv1.ManifestWork, c codec.DisconnectedCluster) *problem {
	end := howToEnd(o, fmt.Sprintf("hawser force-delete work %s %s", o.Namespace, o.Name))
	if c.NeverConnected && c.Reason == "" {
		return newProblem(o, ReasonAgentNeverConnected, fmt.Sprintf(
			"no agent of cluster %q has ever come to the broker: is the namespace misspelt? Else start its agent; the broker keeps the work for it", o.Namespace)+end)
	}
	return newProblem(o, ReasonAgentDisconnected, fmt.Sprintf(
		"%s; no agent of cluster %q is connected to the broker since %s UTC, and the broker keeps this version for it",
		cmp.Or(c.Reason, "check that its agent runs and reaches the broker"), o.Namespace, c.Since.UTC().Format(time.DateTime))+end)
}

// howToEnd says, where a deletion waits, how it ends without the cluster.
func howToEnd(o *workv1.ManifestWork, command string) string {
	if o.DeletionTimestamp == nil {
		return ""
	}
	return "; if the cluster is gone for good, this ends the deletion, and leaves what is on the cluster: " + command
}

func staleSpec(o *workv1.ManifestWork) *problem {
	return newProblem(o, ReasonVersionConflict, fmt.Sprintf(
		"the broker holds a version newer than generation %d, as after a restore of the hub: change the spec until its generation is above that version, or delete the work and create it again", o.Generation))
}

// brokerFull is the same text for every degree of want: a disk that is now full and now nearly full would have
// each work written again and again.
const brokerFull = "the disk of the broker is full or nearly full (or the broker has no file descriptor left), and it takes nothing new: make room on its volume, give it a larger one, or delete works; the work is published again until the broker takes it"

// refusal turns the broker's error into a problem that says what to do.
func refusal(o *workv1.ManifestWork, err error) *problem {
	switch e := transportErrorOf(err); {
	case e.Full:
		return newProblem(o, ReasonBrokerFull, brokerFull)
	case e.Code == transport.CodeOverloaded:
		return newProblem(o, ReasonQuotaExceeded, "the broker has no room for the work, it is tried again: "+messageOf(err))
	case e.Code == transport.CodeTooLarge:
		return newProblem(o, ReasonTooLarge, "the work is too large for the broker: split its manifests over several ManifestWorks, or make its labels and annotations shorter: "+messageOf(err))
	case e.Code == transport.CodeAlreadyExists:
		return newProblem(o, ReasonNameConflict, fmt.Sprintf(
			"another source owns a work named %q on cluster %q: give this one another name, or have the other one deleted: %s", o.Name, o.Namespace, messageOf(err)))
	case e.Code == transport.CodeDenied:
		return newProblem(o, ReasonRejected, "the broker does not allow this hub to deliver the work: check the source id and its certificate: "+messageOf(err))
	default:
		return newProblem(o, ReasonRejected, "the broker refused the work, it is tried again when the work changes: "+messageOf(err))
	}
}

// messageOf is the peer's message and hint, without our own cause.
func messageOf(err error) string {
	var e *transport.Error
	if !errors.As(err, &e) {
		return err.Error()
	}
	if e.Hint != "" {
		return e.Message + " (" + e.Hint + ")"
	}
	return e.Message
}

// withDelivered returns the agent's conditions, in the agent's order, followed
// by the condition Delivered if there is a problem, or one that is True already.
// old are the conditions on the hub: an unchanged Delivered keeps its transition time.
func withDelivered(agents, old []metav1.Condition, b deliveryProblems, now metav1.Time) []metav1.Condition {
	conditions := slices.DeleteFunc(slices.Clone(agents), isDelivered)
	if had := meta.FindStatusCondition(old, ConditionDelivered); had != nil {
		conditions = append(conditions, *had)
	}
	if p := b.problem(); p != nil {
		p.set(&conditions, metav1.ConditionFalse, now)
	} else if b.known {
		conditions = slices.DeleteFunc(conditions, isFault)
	}
	return conditions
}

// withAnswer adds to the conditions of a status of generation that is written anyway for which version the
// cluster has answered. Nothing is written for that alone: after an upgrade that would be a patch for each
// work of the hub.
func withAnswer(conditions []metav1.Condition, generation int64, now metav1.Time) []metav1.Condition {
	n := min(answered(conditions), generation)
	if n > 0 && !slices.ContainsFunc(conditions, isFault) {
		p := problem{ReasonClusterAnswered, fmt.Sprintf("the cluster has answered for generation %d", n), n}
		p.set(&conditions, metav1.ConditionTrue, now)
	}
	return conditions
}

// answered is the newest generation that conditions of a cluster are about.
func answered(conditions []metav1.Condition) (generation int64) {
	for _, c := range conditions {
		if !isDelivered(c) {
			generation = max(generation, c.ObservedGeneration)
		}
	}
	return generation
}

func (p *problem) set(conditions *[]metav1.Condition, status metav1.ConditionStatus, now metav1.Time) {
	meta.SetStatusCondition(conditions, metav1.Condition{
		Type: ConditionDelivered, Status: status, Reason: p.reason, Message: p.message, ObservedGeneration: p.generation, LastTransitionTime: now,
	})
}

func isFault(c metav1.Condition) bool { return isDelivered(c) && c.Status != metav1.ConditionTrue }

func isDelivered(c metav1.Condition) bool { return c.Type == ConditionDelivered }
