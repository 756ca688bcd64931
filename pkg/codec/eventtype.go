package codec

import "strings"

// Subresource is the part of a resource that an event carries: spec or status.
type Subresource string

// The two subresources of the type grammar.
const (
	Spec   Subresource = "spec"
	Status Subresource = "status"
)

// Action is the last element of an event type. The grammar allows any token without a dot; these have a
// meaning.
type Action string

// The actions of the OCM protocol.
const (
	CreateRequest  Action = "create_request"
	UpdateRequest  Action = "update_request"
	DeleteRequest  Action = "delete_request"
	ResyncRequest  Action = "resync_request"
	ResyncResponse Action = "resync_response"
)

// DataType names a kind of resource: <group>.<version>.<resource>. The group may contain dots.
type DataType struct {
	Group, Version, Resource string
}

// EventType is the parsed CloudEvents type attribute:
// <data type>.<subresource>.<action>.
type EventType struct {
	DataType    DataType
	Subresource Subresource
	Action      Action
}

// Types outside the grammar.
const (
	TypeHeartbeat            = "io.open-cluster-management.cloudevents.heartbeat"
	TypeCheckpoint           = "dev.hawser.sync.v1.checkpoint"
	TypeAck                  = "dev.hawser.sync.v1.ack"
	TypeKeepalive            = "dev.hawser.sync.v1.keepalive"
	TypeGoodbye              = "dev.hawser.sync.v1.goodbye"
	TypeInventoryRequest     = "dev.hawser.sync.v1.inventory_request"
	TypeInventory            = "dev.hawser.sync.v1.inventory"
	TypeDisconnectedClusters = "dev.hawser.sync.v1.disconnected_clusters"
	TypeSyncReport           = "dev.hawser.sync.v1.sync_report"
	TypeOrphanReport         = "dev.hawser.sync.v1.orphan_report"
	TypeResolveOrphan        = "dev.hawser.sync.v1.resolve_orphan"
)

// outsideGrammar reports whether t is one of the types above.
func outsideGrammar(t string) bool {
	switch t {
	case TypeHeartbeat, TypeCheckpoint, TypeAck, TypeKeepalive, TypeGoodbye, TypeInventoryRequest, TypeInventory, TypeDisconnectedClusters,
		TypeSyncReport, TypeRelease, TypeOrphanReport, TypeResolveOrphan:
		return true
	}
	return RegistrationEvent(t)
}

// ParseDataType parses <group>.<version>.<resource> from the right, so that
// the group may contain dots. The error is an *AttributeError about "type".
func ParseDataType(s string) (DataType, error) {
	head, resource, ok1 := cutLast(s)
	group, version, ok2 := cutLast(head)
	if !ok1 || !ok2 || !validGroup(group) || version == "" || resource == "" {
		return DataType{}, attributeError("type", s, "the data type must be <group>.<version>.<resource>, such as "+ManifestBundles.String())
	}
	return DataType{Group: group, Version: version, Resource: resource}, nil
}

// String returns <group>.<version>.<resource>.
func (d DataType) String() string { return d.Group + "." + d.Version + "." + d.Resource }

// ParseEventType parses <data type>.<spec|status>.<action> from the right. It accepts any action. The error is
// an *AttributeError about "type".
func ParseEventType(s string) (EventType, error) {
	head, action, ok1 := cutLast(s)
	dataType, sub, ok2 := cutLast(head)
	if !ok1 || !ok2 || action == "" {
		return EventType{}, attributeError("type", s, "must be <group>.<version>.<resource>.<spec|status>.<action>")
	}
	if sub != string(Spec) && sub != string(Status) {
		return EventType{}, attributeError("type", s, `the last element but one must be "spec" or "status"`)
	}
	d, err := ParseDataType(dataType)
	if err != nil {
		return EventType{}, attributeError("type", s, "must be <group>.<version>.<resource>.<spec|status>.<action>")
	}
	return EventType{DataType: d, Subresource: Subresource(sub), Action: Action(action)}, nil
}

// String returns <data type>.<subresource>.<action>.
func (t EventType) String() string {
	return t.DataType.String() + "." + string(t.Subresource) + "." + string(t.Action)
}

func cutLast(s string) (before, after string, ok bool) {
	i := strings.LastIndexByte(s, '.')
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// validGroup reports whether g consists of non-empty elements separated by dots.
func validGroup(g string) bool {
	return g != "" && g[0] != '.' && g[len(g)-1] != '.' && !strings.Contains(g, "..")
}
