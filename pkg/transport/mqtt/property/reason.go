package property

import (
	"fmt"
	"strings"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Reason is an MQTT 5 reason code; codes from 0x80 on are failures.
type Reason byte

// The reason codes that Hawser names.
const (
	Success                   Reason = 0x00
	DisconnectWithWill        Reason = 0x04 // of a client: the broker publishes the will
	NoMatchingSubscribers     Reason = 0x10
	Unspecified               Reason = 0x80
	MalformedPacket           Reason = 0x81
	ProtocolError             Reason = 0x82
	ImplementationSpecific    Reason = 0x83
	UnsupportedVersion        Reason = 0x84
	ClientIDNotValid          Reason = 0x85
	BadUserNameOrPassword     Reason = 0x86
	NotAuthorized             Reason = 0x87
	ServerUnavailable         Reason = 0x88
	ServerBusy                Reason = 0x89
	Banned                    Reason = 0x8A
	ShuttingDown              Reason = 0x8B
	BadAuthenticationMethod   Reason = 0x8C
	KeepAliveTimeout          Reason = 0x8D
	TakenOver                 Reason = 0x8E
	TopicFilterInvalid        Reason = 0x8F
	TopicNameInvalid          Reason = 0x90
	PacketIDInUse             Reason = 0x91
	PacketIDNotFound          Reason = 0x92
	ReceiveMaximumExceeded    Reason = 0x93
	TopicAliasInvalid         Reason = 0x94
	PacketTooLarge            Reason = 0x95
	MessageRateTooHigh        Reason = 0x96
	QuotaExceeded             Reason = 0x97
	AdministrativeAction      Reason = 0x98
	PayloadFormatInvalid      Reason = 0x99
	RetainNotSupported        Reason = 0x9A
	QoSNotSupported           Reason = 0x9B
	UseAnotherServer          Reason = 0x9C
	ServerMoved               Reason = 0x9D
	SharedNotSupported        Reason = 0x9E
	ConnectionRateExceeded    Reason = 0x9F
	MaximumConnectTime        Reason = 0xA0
	SubscriptionIDUnsupported Reason = 0xA1
	WildcardNotSupported      Reason = 0xA2
)

// meaning is the name of a reason in the standard, and the Hawser code if no property has one.
type meaning struct {
	name string
	code transport.Code
}

var meanings = map[Reason]meaning{
	Unspecified:               {"unspecified error", transport.CodeInternal},
	MalformedPacket:           {"malformed packet", transport.CodeInvalid},
	ProtocolError:             {"protocol error", transport.CodeInvalid},
	ImplementationSpecific:    {"implementation specific error", transport.CodeInternal},
	UnsupportedVersion:        {"unsupported protocol version", transport.CodeInvalid},
	ClientIDNotValid:          {"client identifier not valid", transport.CodeInvalid},
	BadUserNameOrPassword:     {"bad user name or password", transport.CodeUnauthenticated},
	NotAuthorized:             {"not authorized", transport.CodeDenied},
	ServerUnavailable:         {"server unavailable", transport.CodeUnavailable},
	ServerBusy:                {"server busy", transport.CodeOverloaded},
	Banned:                    {"banned", transport.CodeDenied},
	ShuttingDown:              {"server shutting down", transport.CodeUnavailable},
	BadAuthenticationMethod:   {"bad authentication method", transport.CodeUnauthenticated},
	KeepAliveTimeout:          {"keep alive timeout", transport.CodeUnavailable},
	TakenOver:                 {"session taken over", transport.CodeUnavailable},
	TopicFilterInvalid:        {"topic filter invalid", transport.CodeInvalid},
	TopicNameInvalid:          {"topic name invalid", transport.CodeInvalid},
	PacketIDInUse:             {"packet identifier in use", transport.CodeInternal},
	PacketIDNotFound:          {"packet identifier not found", transport.CodeInternal},
	ReceiveMaximumExceeded:    {"receive maximum exceeded", transport.CodeInternal},
	TopicAliasInvalid:         {"topic alias invalid", transport.CodeInvalid},
	PacketTooLarge:            {"packet too large", transport.CodeTooLarge},
	MessageRateTooHigh:        {"message rate too high", transport.CodeOverloaded},
	QuotaExceeded:             {"quota exceeded", transport.CodeOverloaded},
	AdministrativeAction:      {"administrative action", transport.CodeUnavailable},
	PayloadFormatInvalid:      {"payload format invalid", transport.CodeInvalid},
	RetainNotSupported:        {"retain not supported", transport.CodeInvalid},
	QoSNotSupported:           {"QoS not supported", transport.CodeInvalid},
	UseAnotherServer:          {"use another server", transport.CodeUnavailable},
	ServerMoved:               {"server moved", transport.CodeUnavailable},
	SharedNotSupported:        {"shared subscriptions not supported", transport.CodeInvalid},
	ConnectionRateExceeded:    {"connection rate exceeded", transport.CodeOverloaded},
	MaximumConnectTime:        {"maximum connect time", transport.CodeUnavailable},
	SubscriptionIDUnsupported: {"subscription identifiers not supported", transport.CodeInvalid},
	WildcardNotSupported:      {"wildcard subscriptions not supported", transport.CodeInvalid},
}

// String returns the name of the reason in the standard, with its number.
func (r Reason) String() string {
	switch r {
	case Success:
		return "success (0x00)"
	case DisconnectWithWill:
		return "disconnect with will message (0x04)"
	case NoMatchingSubscribers:
		return "no matching subscribers (0x10)"
	}
	if m, ok := meanings[r]; ok {
		return fmt.Sprintf("%s (0x%02X)", m.name, byte(r))
	}
	return fmt.Sprintf("reason 0x%02X", byte(r))
}

// Failed reports whether r is a failure.
func (r Reason) Failed() bool { return r >= Unspecified }

// reasons maps each code to its reason in a PUBACK or a SUBACK. MQTT has fewer codes than Hawser; the property
// nameCode has the exact one.
var reasons = map[transport.Code]Reason{
	transport.CodeInternal:        Unspecified,
	transport.CodeInvalid:         PayloadFormatInvalid,
	transport.CodeUnauthenticated: NotAuthorized,
	transport.CodeDenied:          NotAuthorized,
	transport.CodeNotFound:        ImplementationSpecific,
	transport.CodeAlreadyExists:   ImplementationSpecific,
	transport.CodeConflict:        ImplementationSpecific,
	transport.CodeTooLarge:        ImplementationSpecific,
	transport.CodeOverloaded:      QuotaExceeded,
	transport.CodeUnavailable:     ImplementationSpecific,
	transport.CodeDeadline:        ImplementationSpecific,
}

// Names of the properties of an error.
const (
	nameCode      = "hawser-code"
	nameNext      = "hawser-next-step"
	nameDelay     = "hawser-delay"
	nameAttribute = "hawser-attribute"
	nameHint      = "hawser-hint"
	// nameClusterOnly has the value 1 if the error applies to one cluster.
	nameClusterOnly = "hawser-cluster-only"
	// nameFull has the value 1 if the disk of the broker is full.
	nameFull = "hawser-full"
)

var nextSteps = map[transport.NextStep]string{
	transport.NextUnspecified:        "unspecified",
	transport.NextRefreshCredentials: "refresh_credentials",
	transport.NextResync:             "resync",
	transport.NextBackOff:            "back_off",
	transport.NextStop:               "stop",
	transport.NextUseAnotherServer:   "use_another_server",
}

// maxText bounds each text of an error, in bytes.
const maxText = 1024

// Refusal is the answer to a failed call: reason code, reason string and user properties. If the last two are
// not allowed (Request Problem Information is 0, or the packet would be too large), only the code is sent.
type Refusal struct {
	Reason     Reason
	Text       string
	Properties []codec.Property
}

// RefusalOf converts e to MQTT. The revision is that of the receipt, 0 if there is none. The cause of the error
// is never sent.
func RefusalOf(e *transport.Error, revision uint64) Refusal {
	reason, ok := reasons[e.Code]
	code := e.Code
	if !ok {
		reason, code = Unspecified, transport.CodeInternal
	}
	p := add(nil, nameCode, code.String())
	if e.Next != transport.NextUnspecified {
		p = add(p, nameNext, nextSteps[e.Next])
	}
	p = append(p, Delay(e.Delay)...)
	p = add(p, nameAttribute, clip(e.Attribute))
	p = add(p, nameHint, clip(e.Hint))
	if e.ClusterOnly {
		p = add(p, nameClusterOnly, "1")
	}
	if e.Full {
		p = add(p, nameFull, "1")
	}
	return Refusal{Reason: reason, Text: clip(e.Message), Properties: append(p, Receipt(transport.Receipt{Revision: revision})...)}
}

// Delay returns the property with the wait before the next attempt, none for 0. It is part of refusals, and of
// the DISCONNECT of a broker that shuts down.
func Delay(d time.Duration) []codec.Property {
	if d <= 0 {
		return nil
	}
	return add(nil, nameDelay, max(d.Round(time.Millisecond), time.Millisecond).String())
}

// Error returns the *transport.Error of a packet with a failure. Properties take precedence; without them, as
// from an OCM broker, the reason code determines it.
func (r Refusal) Error() *transport.Error {
	m, ok := meanings[r.Reason]
	if !ok {
		m = meaning{"reason 0x" + fmt.Sprintf("%02X", byte(r.Reason)), transport.CodeInternal}
	}
	e := &transport.Error{
		Code:      m.code,
		Attribute: clip(Get(r.Properties, nameAttribute)),
		Message:   clip(r.Text),
		Hint:      clip(Get(r.Properties, nameHint)),

		ClusterOnly: Get(r.Properties, nameClusterOnly) == "1",
		Full:        Get(r.Properties, nameFull) == "1",
	}
	if code, ok := codeOf(Get(r.Properties, nameCode)); ok {
		e.Code = code
	}
	for next, name := range nextSteps {
		if name == Get(r.Properties, nameNext) {
			e.Next = next
		}
	}
	if d, err := time.ParseDuration(Get(r.Properties, nameDelay)); err == nil && d > 0 {
		e.Delay = d
	}
	if e.Next == transport.NextUnspecified && (r.Reason == UseAnotherServer || r.Reason == ServerMoved) {
		e.Next = transport.NextUseAnotherServer
	}
	if e.Message == "" {
		e.Message = "the broker answered " + r.Reason.String() + " without a reason"
	}
	return e
}

// codeOf is the inverse of [transport.Code.String].
func codeOf(name string) (transport.Code, bool) {
	for code := range reasons {
		if code.String() == name {
			return code, true
		}
	}
	return 0, false
}

// clip returns s as valid MQTT text of at most maxText bytes.
func clip(s string) string {
	if len(s) > maxText {
		s = s[:maxText]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, ""), "\x00", "")
}
