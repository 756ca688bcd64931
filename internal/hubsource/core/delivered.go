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

// ConditionDelivered is the only condition type of a ManifestWork that hub-source owns. It is False while a
// problem keeps the work from its cluster, or the cluster's report from the work. Otherwise it is True for the
// last version that the cluster has answered. Before the first answer there is no such condition.
const ConditionDelivered = "Delivered"

// ReasonClusterAnswered is the reason of Delivered=True.
const ReasonClusterAnswered = "ClusterAnswered"

// Reasons of Delivered=False.
const (
	// ReasonTooLarge: the work can never be sent.
	ReasonTooLarge = "TooLarge"
	// ReasonNameConflict: another source owns a work of this name on the cluster.
	ReasonNameConflict = "NameConflict"
	// ReasonRejected: the broker does not accept this work.
	ReasonRejected = "Rejected"
	// ReasonVersionConflict: the broker holds a newer version of the work.
	ReasonVersionConflict = "VersionConflict"
	// ReasonQuotaExceeded: the hub, or the cluster, has reached its quota at the broker.
	ReasonQuotaExceeded = "QuotaExceeded"
	// ReasonBrokerFull: the disk of the broker is full for all clients.
	ReasonBrokerFull = "BrokerFull"
	// ReasonStatusRejected: the hub rejects the cluster's report.
	ReasonStatusRejected = "StatusRejected"
	// ReasonStatusTooLarge: the cluster's report does not fit on the hub.
	ReasonStatusTooLarge = "StatusTooLarge"
	// ReasonAgentDisconnected: the agent is disconnected, and it is unknown whether the cluster has this version.
	ReasonAgentDisconnected = "AgentDisconnected"
	// ReasonAgentNeverConnected: no agent of the cluster has ever connected.
	ReasonAgentNeverConnected = "AgentNeverConnected"
)

// Reasons lists the reasons, for the metric.
var Reasons = []string{ReasonTooLarge, ReasonNameConflict, ReasonRejected, ReasonQuotaExceeded, ReasonBrokerFull, ReasonVersionConflict, ReasonStatusRejected, ReasonStatusTooLarge, ReasonAgentDisconnected, ReasonAgentNeverConnected}

// longestMessage is the limit of a condition message in bytes; errors of the broker may be longer.
const longestMessage = 1024

// problem is a reason of Delivered=False.
type problem struct {
	reason, message string
	generation      int64
}

// deliveryProblems are the known problems of a work. While known is false, a condition that an earlier process
// wrote stays.
type deliveryProblems struct {
	known               bool
	spec, status, agent *problem
}

func (b deliveryProblems) problem() *problem { return cmp.Or(b.spec, b.status, b.agent) }

// problemOnHub returns the problem in the condition Delivered on the hub, nil if it has none of these reasons.
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
		"the status that the cluster reported does not fit on the hub, so the shown one is older. A work, its annotations and its status may have %d bytes together. Split the work, or request fewer feedback values", kubeerror.MaxObject))
}

// disconnectedProblem returns the problem of a work behind a stateless broker whose cluster has not confirmed
// the present version.
func disconnectedProblem(o *workv1.ManifestWork, since time.Time, ever bool) *problem {
	what := fmt.Sprintf("the agent of cluster %q has not been seen since %s UTC", o.Namespace, since.UTC().Format(time.DateTime))
	if !ever {
		what = fmt.Sprintf("no agent of cluster %q has been seen since %s UTC (is the namespace misspelt?)", o.Namespace, since.UTC().Format(time.DateTime))
	}
	return newProblem(o, ReasonAgentDisconnected, what+
		"; its version is unconfirmed. Check that the agent runs and reaches the MQTT broker. The work is published again until the agent answers"+
		howToEnd(o, fmt.Sprintf(`kubectl patch manifestwork %s -n %s --type=merge -p '{"metadata":{"finalizers":null}}'`, o.Name, o.Namespace)))
}

// offline returns the same problem for a broker with records that reports the cluster as disconnected.
func offline(o *workv1.ManifestWork, c codec.DisconnectedCluster) *problem {
	end := howToEnd(o, fmt.Sprintf("hawser force-delete work %s %s", o.Namespace, o.Name))
	if c.NeverConnected && c.Reason == "" {
		return newProblem(o, ReasonAgentNeverConnected, fmt.Sprintf(
			"no agent of cluster %q has ever connected to the broker: check that the namespace is the name of a cluster, and that the agent of this cluster runs. The broker keeps the work for it", o.Namespace)+end)
	}
	return newProblem(o, ReasonAgentDisconnected, fmt.Sprintf(
		"%s; no agent of cluster %q is connected to the broker since %s UTC, and the broker keeps this version for it",
		cmp.Or(c.Reason, "check that its agent runs and reaches the broker"), o.Namespace, c.Since.UTC().Format(time.DateTime))+end)
}

// howToEnd returns advice how to end a pending deletion without the cluster, "" if the work is not being
// deleted.
func howToEnd(o *workv1.ManifestWork, command string) string {
	if o.DeletionTimestamp == nil {
		return ""
	}
	return "; if the cluster will never return, this command ends the deletion without it, and the objects on the cluster stay: " + command
}

func staleSpec(o *workv1.ManifestWork) *problem {
	return newProblem(o, ReasonVersionConflict, fmt.Sprintf(
		"the broker holds a version newer than generation %d, as after a restore of the hub. Change the spec until its generation is above that version, or delete the work and create it again", o.Generation))
}

// brokerFull is one text for a full and for a nearly full disk. With two texts each work would be written again
// whenever the disk moves between the two states.
const brokerFull = "the disk of the broker is full or nearly full (or the broker has no file descriptor left), so it accepts nothing new. Make room on its volume, use a larger one, or delete works. The work is published again until the broker accepts it"

// refusal converts the broker's error into a problem with advice.
func refusal(o *workv1.ManifestWork, err error) *problem {
	switch e := transportErrorOf(err); {
	case e.Full:
		return newProblem(o, ReasonBrokerFull, brokerFull)
	case e.Code == transport.CodeOverloaded:
		return newProblem(o, ReasonQuotaExceeded, "the work exceeds a quota of the broker; hub-source retries: "+messageOf(err))
	case e.Code == transport.CodeTooLarge:
		return newProblem(o, ReasonTooLarge, "the work is too large for the broker: split its manifests over several ManifestWorks, or make its labels and annotations shorter: "+messageOf(err))
	case e.Code == transport.CodeAlreadyExists:
		return newProblem(o, ReasonNameConflict, fmt.Sprintf(
			"another source owns a work named %q on cluster %q: give this one another name, or have the other one deleted: %s", o.Name, o.Namespace, messageOf(err)))
	case e.Code == transport.CodeDenied:
		return newProblem(o, ReasonRejected, "the broker does not allow this hub to deliver the work: check the source id and its certificate: "+messageOf(err))
	default:
		return newProblem(o, ReasonRejected, "the broker rejected the work, it is tried again when the work changes: "+messageOf(err))
	}
}

// messageOf returns the peer's message and hint, without the local cause.
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

// withDelivered returns the agent's conditions in the agent's order. The condition Delivered follows if there
// is a problem, or if it is True already. old are the conditions on the hub: an unchanged Delivered keeps its
// transition time.
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

// withAnswer adds the version that the cluster has answered to a status that is written anyway. The answer
// alone causes no write. Otherwise an upgrade would cause one patch for each work of the hub.
func withAnswer(conditions []metav1.Condition, generation int64, now metav1.Time) []metav1.Condition {
	n := min(answered(conditions), generation)
	if n > 0 && !slices.ContainsFunc(conditions, isFault) {
		p := problem{ReasonClusterAnswered, fmt.Sprintf("the cluster has answered for generation %d", n), n}
		p.set(&conditions, metav1.ConditionTrue, now)
	}
	return conditions
}

// answered returns the newest generation in the conditions of a cluster.
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
